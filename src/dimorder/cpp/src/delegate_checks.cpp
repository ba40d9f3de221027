// Check an XNNPACK delegate for what its backend takes on trust, and for operators that give wrong numbers.
#include "delegate_checks.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace dimorder {
namespace {

using namespace tables; // NOLINT: the places of all fields

constexpr uint64_t kMany = UINT64_MAX / 64; // more bytes than any file has

uint64_t times(uint64_t a, uint64_t b) {
  return b != 0 && a > kMany / b ? kMany : a * b;
}

uint64_t product(const std::vector<uint64_t>& dims) {
  uint64_t all = 1;
  for (const uint64_t dim : dims) all = times(all, dim);
  return all;
}

bool has(const XnnNode* kind, Trait trait) {
  return (kind->traits & static_cast<uint8_t>(trait)) != 0;
}

bool is(const XnnNode* kind, const char* name) {
  return std::strcmp(kind->kind, name) == 0;
}

/// For each dimension its place among those of other sizes than 1; -1 for size 1.
std::vector<int> ranks(const std::vector<uint64_t>& dims) {
  std::vector<int> all;
  int count = 0;
  for (const uint64_t size : dims) all.push_back(size == 1 ? -1 : count++);
  return all;
}

/// The dimensions in the order in which a transpose puts them, without those of size 1.
std::vector<int> sequence(const std::vector<uint64_t>& dims, const std::vector<uint64_t>& perm) {
  const std::vector<int> all = ranks(dims);
  std::vector<int> moved;
  for (const uint64_t dim : perm) {
    if (all[static_cast<size_t>(dim)] >= 0) moved.push_back(all[static_cast<size_t>(dim)]);
  }
  return moved;
}

std::string numbers_as_text(const std::vector<uint64_t>& numbers) {
  std::string text;
  for (const uint64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "(" + text + ")";
}

const std::vector<uint64_t> kNhwc = {0, 2, 3, 1}, kNchw = {0, 3, 1, 2}; // how an inserted transpose permutes a value

} // namespace

XnnGraph::XnnGraph(const uint8_t* bytes, size_t count) {
  unreadable_ = find_start(bytes, count);
  if (unreadable_.empty()) unreadable_ = read();
}

/// Find the flatbuffer: all of the bytes in a delegate of an older ExecuTorch, which has no header.
std::string XnnGraph::find_start(const uint8_t* bytes, size_t count) {
  const auto begins = [&](const char* name) { return count >= 8 && std::memcmp(bytes + 4, name, 4) == 0; };
  if (begins("XH00")) {
    const FlatBytes header{bytes, count};
    const uint64_t at = header.number(10, 4), size = header.number(14, 4);
    const uint64_t constants_at = header.number(18, 4), constants = header.number(22, 8);
    if (header.is_damaged || at + size > count || constants_at > count || constants > count - constants_at) {
      return "a header that tells of more bytes";
    }
    bytes += at;
    count = static_cast<size_t>(size);
  }
  bytes_ = {bytes, count};
  return begins("XN00") || begins("XN01") ? "" : "neither XH00 nor XN00 nor XN01 at byte 4";
}

uint64_t XnnGraph::Tensor::bytes() const {
  const auto type = static_cast<size_t>(datatype);
  return times(product(dims), type < std::size(kXnnBits) ? kXnnBits[type] : 0) / 8;
}

std::string XnnGraph::read() {
  const FlatTable graph = FlatTable::root(bytes_);
  for (const FlatTable& value : graph.tables(kXnnGraphValues)) {
    const uint64_t kind = value.number(kXnnValueKind, 1);
    if (kind != kXnnPlain && kind != kXnnQuantized) return "a value of kind " + std::to_string(kind);
    const FlatTable outer = value.table(kXnnValue);
    const FlatTable table = kind == kXnnQuantized ? outer.table(kXnnQuantizedTensor) : outer;
    Tensor tensor;
    tensor.datatype = static_cast<int64_t>(table.number(kXnnTensorDatatype, 2));
    tensor.dims = table.numbers(kXnnTensorDims, 4);
    tensor.constant = table.number(kXnnTensorConstant);
    tensor.external = table.number(kXnnTensorExternalId);
    tensor.flags = table.number(kXnnTensorFlags);
    const auto need = [this](uint64_t constant, uint64_t bytes) { // 0 stands for none
      if (constant != 0) needed_[constant] = std::max(needed_[constant], bytes);
    };
    if (tensor.constant != 0 && tensor.bytes() == 0 && product(tensor.dims) != 0) return "a constant of no type";
    need(tensor.constant, tensor.bytes());
    const uint64_t quant = kind == kXnnQuantized ? outer.number(kXnnQuantKind, 1) : 0;
    if (quant == kXnnPerChannel || quant == kXnnPerGroup) {
      const FlatTable scales = outer.table(kXnnQuant);
      const bool is_channel = quant == kXnnPerChannel;
      const uint64_t constant = scales.number(is_channel ? kXnnChannelScales : kXnnGroupScales);
      const uint64_t dim = scales.number(kXnnChannelDim), size = is_channel ? 1 : scales.number(kXnnGroupSize);
      if (size == 0 || (is_channel && dim >= tensor.dims.size())) return "scales for a dimension that is not there";
      const uint64_t count = is_channel ? tensor.dims[static_cast<size_t>(dim)] : product(tensor.dims) / size;
      need(constant, times(count, is_channel ? 4 : 2));
      const size_t given = scales.numbers(kXnnScalesInline, 4).size();
      if (constant == 0 && given < count) {
        return std::to_string(given) + " scales for " + std::to_string(count) + " channels or groups";
      }
    }
    tensors_[table.number(kXnnTensorId)] = tensor;
  }
  for (const FlatTable& entry : graph.tables(kXnnGraphNodes)) {
    const uint64_t number = entry.number(kXnnNodeKind, 1);
    if (number == 0 || number > std::size(kXnnNodes)) return "a node of kind " + std::to_string(number);
    const XnnNode* kind = &kXnnNodes[number - 1];
    const FlatTable table = entry.table(tables::kXnnNode);
    Node node = {kind, table, {}, table.number(kind->result), {}, false};
    for (int i = 0; i < kind->count; i++) node.reads.push_back(table.number(kind->operands[i]));
    if (is(kind, "StaticTranspose")) node.perm = table.numbers(kXnnTransposePerm, 4);
    node.is_inserted = !node.perm.empty() && entry.number(kXnnNodeHandle) == kXnnInserted;
    nodes_.push_back(node);
  }
  return "";
}

const XnnGraph::Tensor& XnnGraph::tensor(uint64_t id) const {
  static const Tensor none;
  const auto found = tensors_.find(id);
  bytes_.is_damaged |= found == tensors_.end();
  return found == tensors_.end() ? none : found->second;
}

std::string XnnGraph::damage(
    const std::map<std::string_view, uint64_t>& named_data, std::optional<std::string>* missing) {
  std::string why = unreadable_;
  if (why.empty()) why = check_constants(named_data, missing);
  if (why.empty()) why = check_flow();
  return why.empty() && bytes_.is_damaged ? "a place outside of them" : why;
}

std::string XnnGraph::check_constants(
    const std::map<std::string_view, uint64_t>& named_data, std::optional<std::string>* missing) {
  const auto constants = FlatTable::root(bytes_).tables(kXnnGraphConstants);
  for (size_t i = 0; i < constants.size(); i++) {
    const auto name = constants[i].text(kXnnConstantName);
    const auto needed = needed_.find(i);
    const uint64_t bytes = needed == needed_.end() ? 0 : needed->second;
    uint64_t given = constants[i].number(kXnnConstantSize, 8);
    if (!name.value_or("").empty()) {
      const auto named = named_data.find(*name);
      given = named == named_data.end() ? bytes : named->second;
      if (named == named_data.end()) *missing = std::string(*name);
    }
    if (given < bytes) return "a constant of " + std::to_string(given) + " bytes for a tensor of " + std::to_string(bytes);
  }
  return "";
}

std::string XnnGraph::check_flow() {
  std::set<uint64_t> known;
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.constant != 0 || (tensor.flags & kXnnExternalInput) != 0) known.insert(id);
  }
  for (size_t i = 0; i < nodes_.size(); i++) {
    const Node& node = nodes_[i];
    const std::string place = "node " + std::to_string(i) + ", " + node.kind->kind + ": ";
    for (const uint64_t read : node.reads) {
      if (known.count(read) == 0) return place + "it reads a value before that is written";
    }
    if (!known.insert(node.gives).second) return place + "it writes a value that is written already";
    if (!has(node.kind, Trait::kConvolutions)) continue;
    const Dims& dims = tensor(node.table.number(kXnnFilter)).dims;
    uint64_t filter = 1;
    for (const int size : kFilterSizes) filter = times(filter, node.table.number(size));
    if (product(dims) != filter) return place + "a filter of " + numbers_as_text(dims);
  }
  return "";
}

std::string XnnGraph::check_arguments(const Plan& plan, const std::vector<int64_t>& arguments) {
  const FlatTable graph = FlatTable::root(bytes_);
  std::set<uint64_t> places;
  for (const int field : {kXnnGraphInputs, kXnnGraphOutputs}) {
    for (const uint64_t id : graph.numbers(field, 4)) places.insert(tensor(id).external);
  }
  for (const auto& [id, tensor] : tensors_) {
    if ((tensor.flags & (kXnnExternalInput | kXnnExternalOutput)) != 0) places.insert(tensor.external);
  }
  for (const uint64_t place : places) {
    if (place >= arguments.size()) return "a call without argument " + std::to_string(place);
    const Kind kind = plan.value(arguments[static_cast<size_t>(place)]).kind;
    if (kind != Kind::kTensor) {
      return "argument " + std::to_string(place) + " is of kind " + kKinds[static_cast<size_t>(kind)];
    }
  }
  return bytes_.is_damaged ? "a place outside of them" : "";
}

std::vector<Misread> XnnGraph::misread(const std::vector<const TensorTable*>& arguments) {
  std::vector<Misread> found;
  Orders orders;
  const auto add = [&found](const Node& node, const char* suffix, int rank, const char* letter) {
    found.push_back({std::string(node.kind->kind) + suffix + " in " + kXnnpack, rank, letter});
  };
  const bool is_dynamic =
      std::any_of(arguments.begin(), arguments.end(), [](const TensorTable* each) { return !each->is_static; });
  for (const auto& [id, tensor] : tensors_) {
    if ((tensor.flags & (kXnnExternalInput | kXnnExternalOutput)) == 0) continue;
    if (tensor.external >= arguments.size()) {
      bytes_.is_damaged = true;
      return found;
    }
    const TensorTable& argument = *arguments[static_cast<size_t>(tensor.external)];
    Dims given;
    for (const int dim : argument.order) given.push_back(static_cast<uint64_t>(argument.sizes[static_cast<size_t>(dim)]));
    Dims sorted = given, own = tensor.dims;
    std::sort(sorted.begin(), sorted.end());
    std::sort(own.begin(), own.end());
    // A dynamic size may differ, which says nothing about the order.
    const bool is_moved = given != tensor.dims && sorted == own;
    if ((tensor.flags & kXnnExternalOutput) != 0) continue; // an output that differs is refused by the runtime
    if (is_moved) orders.at_runtime[id] = given;
    else if (std::equal(argument.order.begin(), argument.order.end(), kNhwc.begin(), kNhwc.end())) orders.nhwc.insert(id);
  }
  for (const Node& node : nodes_) {
    if (is_nhwc(node, orders)) {
      orders.nhwc.insert(node.gives);
      const Tensor& result = tensor(node.gives);
      const bool has_pixels = result.dims[2] != 1 || result.dims[3] != 1; // in NCHW and in NHWC
      if (is(node.kind, "Softmax") && has_pixels) add(node, "", 4, "L");
      // XNNPACK may plan too little memory for the sums of integers and of halves.
      const bool is_summed = is_dynamic && result.datatype != kXnnFloat32 && result.dims[0] != 1;
      if (is(node.kind, "GlobalAvgPooling2d") && is_summed) add(node, " of a dynamic batch", 4, "L");
    }
    const auto moved = std::find_if(
        node.reads.begin(), node.reads.end(), [&](uint64_t read) { return orders.at_runtime.count(read) != 0; });
    if (moved == node.reads.end() || is(node.kind, "StaticReshape")) continue; // which reads row by row
    const std::optional<Dims> result = dims_at_runtime(node, *moved, orders);
    if (result.has_value()) orders.at_runtime[node.gives] = *result;
    // Other nodes refuse such sizes at run time.
    else if (has(node.kind, Trait::kSilent)) add(node, "", static_cast<int>(tensor(*moved).dims.size()), "l");
  }
  return found;
}

/// Whether a result lies in NHWC; ExecuTorch brings all operands of a node into one order.
bool XnnGraph::is_nhwc(const Node& node, const Orders& orders) const {
  if (tensor(node.gives).dims.size() != 4 || has(node.kind, Trait::kGiveNchw)) return false;
  if (node.is_inserted && (node.perm == kNhwc || node.perm == kNchw)) return node.perm == kNhwc;
  return has(node.kind, Trait::kGiveNhwc) ||
      std::any_of(node.reads.begin(), node.reads.end(), [&](uint64_t read) { return orders.nhwc.count(read) != 0; });
}

/// The dims of the result if it is right although an operand has other dims, else none.
std::optional<XnnGraph::Dims> XnnGraph::dims_at_runtime(const Node& node, uint64_t moved, const Orders& orders) const {
  const Dims &dims = tensor(moved).dims, &own = orders.at_runtime.at(moved), &result = tensor(node.gives).dims;
  if (!node.perm.empty()) {
    Dims permuted;
    for (const uint64_t dim : node.perm) {
      if (dim >= own.size() || dim >= dims.size()) {
        bytes_.is_damaged = true;
        return std::nullopt;
      }
      permuted.push_back(own[static_cast<size_t>(dim)]);
    }
    return sequence(dims, node.perm) == sequence(own, node.perm) ? std::optional<Dims>(permuted) : std::nullopt;
  }
  const std::optional<std::set<size_t>> touched = touched_dims(node, moved, orders);
  if (!touched.has_value() || result.size() != dims.size()) return std::nullopt;
  Dims given = own;
  for (const size_t dim : *touched) {
    if (dim >= dims.size() || ranks(dims)[dim] != ranks(own)[dim]) return std::nullopt;
    given[dim] = result[dim];
  }
  return given;
}

/// The dims of an operand that a node does not treat alike; none if that is not known.
std::optional<std::set<size_t>> XnnGraph::touched_dims(const Node& node, uint64_t moved, const Orders& orders) const {
  const size_t rank = tensor(moved).dims.size();
  std::set<size_t> touched;
  if (has(node.kind, Trait::kLastDim)) return std::set<size_t>{rank - 1};
  if (has(node.kind, Trait::kUnary)) return touched;
  if (has(node.kind, Trait::kBinary)) {
    for (const uint64_t read : node.reads) {
      const auto other = orders.at_runtime.find(read);
      if (other != orders.at_runtime.end() && other->second == orders.at_runtime.at(moved)) continue;
      const Dims& dims = tensor(read).dims;
      for (size_t i = 0; i < dims.size(); i++) {
        if (dims[i] != 1) touched.insert(rank - dims.size() + i);
      }
    }
    return touched;
  }
  if (is(node.kind, "StaticConstantPad")) {
    const auto before = node.table.numbers(kXnnPadBefore, 4), after = node.table.numbers(kXnnPadAfter, 4);
    bytes_.is_damaged |= before.size() != after.size();
    for (size_t i = 0; i < std::min(before.size(), after.size()); i++) {
      if (before[i] != 0 || after[i] != 0) touched.insert(i);
    }
    return touched;
  }
  return std::nullopt;
}

} // namespace dimorder
