// Own memory, and a tensor that lies in it.
#pragma once

#include <dimorder/program.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace dimorder::runner {

/// Bytes on the heap. What a file's header asks for may be more than there is, so that failing is no exception.
class Buffer {
 public:
  /// Get room for so many bytes, and keep what is there; false where there is no memory.
  bool resize(size_t bytes) {
    if (bytes > SIZE_MAX - kPadding) return false;
    void* memory = std::realloc(memory_.get(), bytes + kPadding);
    if (memory == nullptr) return false;
    (void)memory_.release();
    memory_.reset(static_cast<uint8_t*>(memory));
    size_ = bytes;
    return true;
  }

  uint8_t* data() {
    return memory_.get();
  }
  const uint8_t* data() const {
    return memory_.get();
  }
  size_t size() const {
    return size_;
  }

 private:
  struct Free {
    void operator()(uint8_t* memory) const {
      std::free(memory);
    }
  };

  static constexpr size_t kPadding = 128; // kernels of XNNPACK read beyond the end of a tensor
  std::unique_ptr<uint8_t, Free> memory_;
  size_t size_ = 0;
};

/// A tensor whose first element lies at the beginning of its own memory.
struct Array {
  Buffer memory;
  Tensor tensor;
};

} // namespace dimorder::runner
