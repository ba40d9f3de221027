// Read tables of a flatbuffer that nobody has verified. A place outside of its bytes reads as 0, and is remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace dimorder {

struct FlatBytes {
  const uint8_t* data = nullptr;
  size_t size = 0;
  mutable bool is_damaged = false; ///< whether something was sought outside

  bool has(size_t at, uint64_t bytes) const {
    if (at <= size && bytes <= size - at) return true;
    is_damaged = true;
    return false;
  }

  uint64_t number(size_t at, size_t bytes) const {
    uint64_t number = 0;
    for (size_t i = has(at, bytes) ? bytes : 0; i > 0; i--) number = number << 8 | data[at + i - 1];
    return number;
  }
};

/// A table, with fields by their places in the schema. Absent ones are 0 or empty.
class FlatTable {
 public:
  FlatTable(const FlatBytes& bytes, size_t at) : bytes_(&bytes), at_(at) {}

  static FlatTable root(const FlatBytes& bytes) {
    return {bytes, static_cast<size_t>(bytes.number(0, 4))};
  }

  bool has(int place) const {
    return field(place) != 0;
  }

  uint64_t number(int place, size_t bytes = 4) const {
    const size_t at = field(place);
    return at == 0 ? 0 : bytes_->number(at, bytes);
  }

  /// A number of 4 bytes with a sign.
  int64_t integer(int place) const {
    return static_cast<int32_t>(number(place));
  }

  FlatTable table(int place) const {
    const size_t at = field(place);
    if (at == 0) bytes_->is_damaged = true;
    return {*bytes_, at == 0 ? bytes_->size : follow(at)};
  }

  std::optional<std::string_view> text(int place) const {
    if (!has(place)) return std::nullopt;
    const auto [at, count] = vector(place, 1);
    return std::string_view(reinterpret_cast<const char*>(bytes_->data) + at, count);
  }

  std::vector<uint64_t> numbers(int place, size_t bytes) const {
    const auto [at, count] = vector(place, bytes);
    std::vector<uint64_t> all(count);
    for (size_t i = 0; i < count; i++) all[i] = bytes_->number(at + i * bytes, bytes);
    return all;
  }

  /// Numbers of 4 bytes with a sign.
  std::vector<int64_t> integers(int place) const {
    std::vector<int64_t> all;
    for (const uint64_t number : numbers(place, 4)) all.push_back(static_cast<int32_t>(number));
    return all;
  }

  std::vector<FlatTable> tables(int place) const {
    const auto [at, count] = vector(place, 4);
    std::vector<FlatTable> all;
    for (size_t i = 0; i < count; i++) all.emplace_back(*bytes_, follow(at + 4 * i));
    return all;
  }

 private:
  struct Vector {
    size_t at, count;
  };

  size_t follow(size_t at) const {
    return at + static_cast<size_t>(bytes_->number(at, 4));
  }

  size_t field(int place) const { // 0 where it is absent
    const size_t vtable = at_ - static_cast<size_t>(static_cast<int32_t>(bytes_->number(at_, 4)));
    const auto slot = 4 + 2 * static_cast<size_t>(place);
    const auto at = bytes_->number(vtable, 2) > slot ? static_cast<size_t>(bytes_->number(vtable + slot, 2)) : 0;
    return at == 0 ? 0 : at_ + at;
  }

  Vector vector(int place, size_t bytes) const {
    const size_t at = field(place);
    if (at == 0) return {0, 0};
    const size_t start = follow(at) + 4;
    const uint64_t count = bytes_->number(start - 4, 4);
    return bytes_->has(start, count * bytes) ? Vector{start, static_cast<size_t>(count)} : Vector{0, 0};
  }

  const FlatBytes* bytes_;
  size_t at_;
};

} // namespace dimorder
