// Describe memory by sizes and strides, and copy it from one order into another.
#include <dimorder/program.h>

#include "transpose.h"

#include <algorithm>
#include <cstring>

namespace dimorder {
namespace {

Tensor with_sizes(const void* data, ScalarType dtype, const int64_t* sizes, size_t rank) {
  Tensor tensor;
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.rank = static_cast<int>(rank);
  std::copy_n(sizes, tensor.rank, tensor.sizes);
  return tensor;
}

/// What no program takes: its sizes, strides or order do not belong together.
Tensor invalid() {
  Tensor tensor;
  tensor.rank = -1;
  return tensor;
}

/// A product, at most SIZE_MAX: an expanded tensor may have more elements than there is memory.
size_t at_most_all(size_t a, uint64_t b) {
  return b != 0 && a > SIZE_MAX / b ? SIZE_MAX : static_cast<size_t>(a * b);
}

/// One loop of a copy: how often, and how many elements apart in each of the two.
struct Loop {
  int64_t count, from, to;
};

/// The loops of a copy, outermost first, with as few of them as there can be.
int loops_of(const Tensor& from, const Tensor& to, Loop* loops) {
  int count = 0;
  for (int dim = 0; dim < to.rank; dim++) {
    if (to.sizes[dim] != 1) loops[count++] = {to.sizes[dim], from.strides[dim], to.strides[dim]};
  }
  // In the order of the target, so that it is written from its beginning to its end.
  std::stable_sort(loops, loops + count, [](const Loop& a, const Loop& b) { return a.to > b.to; });
  int merged = 0;
  for (int i = 0; i < count; i++) {
    Loop* last = merged == 0 ? nullptr : &loops[merged - 1];
    const Loop& next = loops[i];
    if (last != nullptr && last->from == next.from * next.count && last->to == next.to * next.count) {
      *last = {last->count * next.count, next.from, next.to};
    } else {
      loops[merged++] = next;
    }
  }
  return merged;
}

template <typename T>
void copy_line(const char* from, char* to, const Loop& loop) {
  const auto* source = reinterpret_cast<const T*>(from);
  auto* target = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < loop.count; i++) target[i * loop.to] = source[i * loop.from];
}

void copy_loops(const char* from, char* to, const Loop* loops, int count, size_t itemsize) {
  const auto bytes = static_cast<int64_t>(itemsize);
  const Loop& loop = loops[0];
  if (count > 1) {
    for (int64_t i = 0; i < loop.count; i++) {
      copy_loops(from + i * loop.from * bytes, to + i * loop.to * bytes, loops + 1, count - 1, itemsize);
    }
  } else if (loop.from == 1 && loop.to == 1) {
    std::memcpy(to, from, static_cast<size_t>(loop.count) * itemsize);
  } else if (itemsize == 1) {
    copy_line<uint8_t>(from, to, loop);
  } else if (itemsize == 2) {
    copy_line<uint16_t>(from, to, loop);
  } else if (itemsize == 4) {
    copy_line<uint32_t>(from, to, loop);
  } else {
    copy_line<uint64_t>(from, to, loop);
  }
}

} // namespace

Tensor Tensor::dense(const void* data, ScalarType dtype, const int64_t* sizes, int rank) {
  int order[DIMORDER_MAX_RANK];
  if (rank < 0 || rank > DIMORDER_MAX_RANK) return invalid();
  dimorder_contiguous(order, rank);
  return in_order(data, dtype, sizes, order, rank);
}

Tensor Tensor::dense(const void* data, ScalarType dtype, std::initializer_list<int64_t> sizes) {
  return dense(data, dtype, sizes.begin(), static_cast<int>(sizes.size()));
}

Tensor Tensor::in_order(const void* data, ScalarType dtype, const int64_t* sizes, const int* order, int rank) {
  if (rank < 0 || rank > DIMORDER_MAX_RANK || !dimorder_is_order(order, rank)) return invalid();
  Tensor tensor = with_sizes(data, dtype, sizes, static_cast<size_t>(rank));
  dimorder_strides(order, tensor.rank, tensor.sizes, tensor.strides);
  return tensor;
}

Tensor Tensor::in_order(
    const void* data, ScalarType dtype, std::initializer_list<int64_t> sizes, std::initializer_list<int> order) {
  if (order.size() != sizes.size()) return invalid();
  return in_order(data, dtype, sizes.begin(), order.begin(), static_cast<int>(sizes.size()));
}

Tensor Tensor::strided(
    const void* data, ScalarType dtype, std::initializer_list<int64_t> sizes,
    std::initializer_list<int64_t> strides) {
  if (strides.size() != sizes.size() || sizes.size() > DIMORDER_MAX_RANK) return invalid();
  Tensor tensor = with_sizes(data, dtype, sizes.begin(), sizes.size());
  std::copy_n(strides.begin(), strides.size(), tensor.strides);
  return tensor;
}

Tensor Tensor::of(const ::executorch::aten::Tensor& tensor) {
  int64_t sizes[DIMORDER_MAX_RANK];
  int order[DIMORDER_MAX_RANK];
  const auto rank = static_cast<size_t>(tensor.dim());
  if (rank > DIMORDER_MAX_RANK) return invalid();
  const auto* own = tensor.unsafeGetTensorImpl()->dim_order().data(); // null where it was not given: row-major
  for (size_t i = 0; i < rank; i++) {
    sizes[i] = tensor.sizes()[i];
    order[i] = own == nullptr ? static_cast<int>(i) : own[i];
  }
  return in_order(tensor.const_data_ptr(), tensor.scalar_type(), sizes, order, static_cast<int>(rank));
}

size_t Tensor::numel() const {
  size_t count = rank < 0 ? 0 : 1;
  if (std::any_of(sizes, sizes + std::max(rank, 0), [](int64_t size) { return size <= 0; })) return 0;
  for (int i = 0; i < rank; i++) count = at_most_all(count, static_cast<uint64_t>(sizes[i]));
  return count;
}

size_t Tensor::nbytes() const {
  return at_most_all(numel(), dimorder_itemsize(static_cast<int>(dtype)));
}

void convert(const Tensor& from, const Tensor& to) {
  Loop loops[DIMORDER_MAX_RANK];
  const size_t itemsize = dimorder_itemsize(static_cast<int>(to.dtype));
  if (to.numel() == 0 || itemsize == 0) return;
  const int count = loops_of(from, to, loops);
  const auto* source = static_cast<const char*>(from.data);
  auto* target = static_cast<char*>(to.data);
  if (count == 0) {
    std::memcpy(target, source, itemsize);
    return;
  }
  // The two innermost loops may be a dense matrix that is transposed; the others are repeated for each.
  const Loop &rows = loops[count - 1], &columns = loops[count > 1 ? count - 2 : 0];
  const bool is_transposition = count > 1 && columns.from == 1 && rows.from == columns.count && rows.to == 1 &&
      columns.to == rows.count;
  if (!is_transposition) {
    copy_loops(source, target, loops, count, itemsize);
    return;
  }
  int64_t at[DIMORDER_MAX_RANK] = {};
  const auto bytes = static_cast<int64_t>(itemsize);
  while (true) {
    int64_t read = 0, written = 0;
    for (int i = 0; i < count - 2; i++) {
      read += at[i] * loops[i].from;
      written += at[i] * loops[i].to;
    }
    dimorder_transpose(
        source + read * bytes, target + written * bytes, itemsize, 1, static_cast<size_t>(rows.count),
        static_cast<size_t>(columns.count), 1);
    int dim = count - 3;
    while (dim >= 0 && ++at[dim] == loops[dim].count) at[dim--] = 0;
    if (dim < 0) return;
  }
}

} // namespace dimorder
