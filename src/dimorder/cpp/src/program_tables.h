// The tables of a .pte that the loader checks, read as dimorder's Python package does (executorch/program_tables.py).
#pragma once

#include "flat.h"
#include "tables.h"

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/freeable_buffer.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dimorder {

struct TensorTable {
  int dtype = 0;
  std::vector<int64_t> sizes;
  std::vector<int> order;
  uint64_t count = 1; ///< of elements
  uint64_t constant = 0; ///< its index; 0 for none
  std::optional<std::array<uint64_t, 3>> planned; ///< where it lies in planned memory
  bool is_static = true, is_unbound = false, is_external = false;
  std::string name; ///< of an external constant
};

struct Value {
  tables::Kind kind = tables::Kind::kNone;
  std::optional<FlatTable> table;
  std::optional<TensorTable> tensor;
  std::vector<int64_t> items; ///< the values that a list has
};

/// An instruction: `index` is that of its operator or its delegate.
struct Call {
  tables::Instruction kind = tables::Instruction::kNone;
  int64_t index = 0;
  std::vector<int64_t> arguments;
};

struct Delegate {
  std::string id;
  bool is_inline = false;
  uint64_t index = 0;
};

/// A method. An index that is out of range reads as a value of no kind, or a name of "", and is remembered as damage.
struct Plan {
  const FlatBytes* bytes = nullptr;
  std::vector<Value> values;
  std::vector<int64_t> inputs, outputs;
  std::vector<std::string> kernels; ///< of the operators, as "aten::add.out"
  std::vector<Delegate> delegates;
  std::vector<Call> calls;

  const Value& value(int64_t index) const;

  /// The kernel that a call runs; "" for a delegate's call.
  const std::string& kernel_of(const Call& call) const;

  /// The tensors that an argument stands for, as indices of values.
  std::vector<int64_t> tensors_of(int64_t index) const;
};

/// What a delegate's backend is given.
struct DelegateBytes {
  std::optional<::executorch::runtime::FreeableBuffer> segment;
  const uint8_t* data = nullptr;
  size_t size = 0;
};

class ProgramTables {
 public:
  /// Return why the tables cannot be read, or contradict each other; "" if they do not. `loader` must live as long.
  std::string open(const ::executorch::runtime::DataLoader& loader);

  /// Return a method; none if the program has no such method.
  std::optional<Plan> plan(std::string_view name) const;

  /// Return the text that a method returns without computing it; none if it returns none.
  std::optional<std::string> constant_text(std::string_view method) const;

  std::optional<DelegateBytes> delegate_bytes(const Delegate& delegate) const;

  /// Return the bytes that each constant may have, by its index.
  std::vector<int64_t> constant_sizes() const;

  /// Return the bytes of the constants that are kept for delegates, by their names.
  std::map<std::string_view, uint64_t> named_data() const;

  bool is_damaged() const {
    return bytes_.is_damaged;
  }

 private:
  struct Segment {
    uint64_t offset, size;
  };

  FlatTable root() const {
    return FlatTable::root(bytes_);
  }

  uint64_t segment_size(uint64_t index) const;

  const ::executorch::runtime::DataLoader* loader_ = nullptr;
  std::optional<::executorch::runtime::FreeableBuffer> program_;
  FlatBytes bytes_;
  uint64_t segments_at_ = 0;
  std::vector<Segment> segments_;
};

} // namespace dimorder
