// Read a .pte so that constants which are used after ExecuTorch has freed them show themselves. For tests.
#include "loaders.h"

#include <cstdint>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dimorder::runner {
namespace {

namespace et = ::executorch::runtime;

// 0x7fff in each half of a word is NaN as float16, bfloat16, float32 and float64.
void poison(void*, void* data, size_t size) {
  auto* bytes = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < size; i++) bytes[i] = i % 2 == 0 ? 0xff : 0x7f;
}

void make_unreadable(void*, void* data, size_t size) {
  mprotect(data, size, PROT_NONE);
}

class HostileLoader final : public et::DataLoader {
 public:
  HostileLoader(int file, size_t size, Freed freed) : file_(file), size_(size), freed_(freed) {}

  ~HostileLoader() override {
    close(file_);
  }

  et::Result<et::FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override {
    void* memory = mmap(nullptr, size == 0 ? 1 : size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return et::Error::MemoryAllocationFailed;
    const et::Error error = load_into(offset, size, info, memory);
    if (error != et::Error::Ok) return error;
    return et::FreeableBuffer(memory, size, freed_ == Freed::kPoisoned ? poison : make_unreadable);
  }

  et::Error load_into(size_t offset, size_t size, const SegmentInfo&, void* to) const override {
    if (offset > size_ || size > size_ - offset) return et::Error::InvalidArgument;
    auto* at = static_cast<char*>(to);
    for (size_t done = 0; done < size;) {
      const ssize_t read = pread(file_, at + done, size - done, static_cast<off_t>(offset + done));
      if (read <= 0) return et::Error::AccessFailed;
      done += static_cast<size_t>(read);
    }
    return et::Error::Ok;
  }

  et::Result<size_t> size() const override {
    return size_;
  }

 private:
  int file_;
  size_t size_;
  Freed freed_;
};

} // namespace

std::unique_ptr<et::DataLoader> open_hostile(const char* path, Freed freed) {
  struct stat found;
  const int file = open(path, O_RDONLY);
  if (file < 0) return nullptr;
  if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(file);
    return nullptr;
  }
  return std::make_unique<HostileLoader>(file, static_cast<size_t>(found.st_size), freed);
}

} // namespace dimorder::runner
