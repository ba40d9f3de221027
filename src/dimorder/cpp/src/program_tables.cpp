// Read the tables of a .pte. Fields and numbers that do not exist are damage.
#include "program_tables.h"

#include <dimorder/contract.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace dimorder {
namespace {

namespace et = ::executorch::runtime;
using namespace tables; // NOLINT: the places of all fields
using Info = et::DataLoader::SegmentInfo;

template <typename Table>
Table number_in(uint64_t number, uint64_t count, const FlatBytes& bytes) {
  if (number == 0 || number >= count) bytes.is_damaged = true;
  return static_cast<Table>(number < count ? number : 0);
}

TensorTable read_tensor(const FlatTable& table, const FlatBytes& bytes) {
  TensorTable tensor;
  const auto fail_unless = [&bytes](bool is_right) { bytes.is_damaged |= !is_right; };
  tensor.dtype = static_cast<int>(table.number(kTensorScalarType, 1));
  fail_unless(std::find(std::begin(kScalarTypes), std::end(kScalarTypes), tensor.dtype) != std::end(kScalarTypes));
  tensor.sizes = table.integers(kTensorSizes);
  for (const int64_t size : tensor.sizes) {
    fail_unless(size >= 0);
    const auto times = static_cast<uint64_t>(std::max<int64_t>(size, 0));
    tensor.count = times != 0 && tensor.count > UINT64_MAX / 16 / times ? UINT64_MAX / 16 : tensor.count * times;
  }
  for (const uint64_t dim : table.numbers(kTensorDimOrder, 1)) tensor.order.push_back(static_cast<int>(dim));
  const auto rank = tensor.sizes.size();
  fail_unless(
      rank <= DIMORDER_MAX_RANK && tensor.order.size() == rank &&
      dimorder_is_order(tensor.order.data(), static_cast<int>(rank)) != 0);
  tensor.constant = table.number(kTensorDataBufferIdx);
  if (table.has(kTensorAllocationInfo)) {
    const FlatTable place = table.table(kTensorAllocationInfo);
    tensor.planned = {
        place.number(kAllocationDetailsMemoryId), place.number(kAllocationDetailsMemoryOffsetLow),
        place.number(kAllocationDetailsMemoryOffsetHigh)};
  }
  const uint64_t dynamism = table.number(kTensorShapeDynamism, 1);
  fail_unless(dynamism <= 2);
  tensor.is_static = dynamism == 0;
  tensor.is_unbound = dynamism == 2;
  if (table.has(kTensorExtraTensorInfo)) {
    const FlatTable info = table.table(kTensorExtraTensorInfo);
    const uint64_t location = info.number(kExtraTensorInfoLocation, 1);
    fail_unless(location <= 1);
    tensor.is_external = location == 1;
    tensor.name = info.text(kExtraTensorInfoFullyQualifiedName).value_or("");
  }
  return tensor;
}

Value read_value(const FlatTable& table, const FlatBytes& bytes) {
  Value value;
  value.kind = number_in<Kind>(table.number(kEValueVal, 1), std::size(kKinds), bytes);
  const FlatTable member = table.table(kEValueVal + 1); // a union takes two places
  value.table = member;
  if (value.kind == Kind::kTensor) value.tensor = read_tensor(member, bytes);
  if (value.kind == Kind::kTensorList || value.kind == Kind::kOptionalTensorList) {
    value.items = member.integers(kTensorListItems);
  }
  if (value.kind == Kind::kIntList) {
    for (const uint64_t item : member.numbers(kIntListItems, 8)) value.items.push_back(static_cast<int64_t>(item));
  }
  return value;
}

Call read_call(const FlatTable& table, const FlatBytes& bytes) {
  Call call;
  call.kind = number_in<Instruction>(
      table.number(kInstructionInstrArgs, 1), static_cast<uint64_t>(Instruction::kFreeCall) + 1, bytes);
  const FlatTable member = table.table(kInstructionInstrArgs + 1);
  if (call.kind == Instruction::kKernelCall || call.kind == Instruction::kDelegateCall) {
    call.index = member.integer(kKernelCallOpIndex); // kDelegateCallDelegateIndex is the same place
    call.arguments = member.integers(kKernelCallArgs);
  } else if (call.kind == Instruction::kMoveCall) {
    call.arguments = {member.integer(kMoveCallMoveFrom), member.integer(kMoveCallMoveTo)};
  } else { // of a jump and of what is freed the first field is a value
    call.arguments = {member.integer(kFreeCallValueIndex)};
  }
  return call;
}

static_assert(
    static_cast<int>(kKernelCallOpIndex) == static_cast<int>(kDelegateCallDelegateIndex) &&
    static_cast<int>(kKernelCallArgs) == static_cast<int>(kDelegateCallArgs) &&
    static_cast<int>(kJumpFalseCallCondValueIndex) == static_cast<int>(kFreeCallValueIndex) &&
    static_cast<int>(kTensorListItems) == static_cast<int>(kOptionalTensorListItems));

} // namespace

const Value& Plan::value(int64_t index) const {
  static const Value none;
  if (index >= 0 && static_cast<size_t>(index) < values.size()) return values[static_cast<size_t>(index)];
  bytes->is_damaged = true;
  return none;
}

const std::string& Plan::kernel_of(const Call& call) const {
  static const std::string none;
  if (call.kind != Instruction::kKernelCall) return none;
  if (call.index >= 0 && static_cast<size_t>(call.index) < kernels.size()) return kernels[static_cast<size_t>(call.index)];
  bytes->is_damaged = true;
  return none;
}

std::vector<int64_t> Plan::tensors_of(int64_t index) const {
  const Value& of = value(index);
  if (of.kind == Kind::kTensor) return {index};
  std::vector<int64_t> items;
  if (of.kind != Kind::kTensorList && of.kind != Kind::kOptionalTensorList) return items;
  for (const int64_t item : of.items) {
    if (item < 0) continue; // None
    if (value(item).kind == Kind::kTensor) items.push_back(item);
    else bytes->is_damaged = true;
  }
  return items;
}

std::string ProgramTables::open(const et::DataLoader& loader) {
  loader_ = &loader;
  constexpr size_t kHead = 40;
  const auto size = loader.size();
  auto head = loader.load(0, kHead, Info(Info::Type::Program)); // check_file has found that it is so long
  if (!size.ok() || !head.ok()) return "bytes that cannot be read";
  const FlatBytes header{static_cast<const uint8_t*>(head->data()), kHead};
  const bool has_header = std::memcmp(header.data + 8, "eh00", 4) == 0;
  const uint64_t length = has_header ? header.number(16, 8) : *size;
  segments_at_ = has_header ? header.number(24, 8) : 0;
  auto all = loader.load(0, static_cast<size_t>(std::min<uint64_t>(length, *size)), Info(Info::Type::Program));
  if (!all.ok()) return "bytes that cannot be read";
  program_.emplace(std::move(*all));
  bytes_ = {static_cast<const uint8_t*>(program_->data()), program_->size()};
  for (const FlatTable& table : root().tables(kProgramSegments)) {
    segments_.push_back({table.number(kDataSegmentOffset, 8), table.number(kDataSegmentSize, 8)});
  }
  std::vector<Segment> sorted = segments_;
  std::sort(sorted.begin(), sorted.end(), [](const Segment& a, const Segment& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.size < b.size;
  });
  uint64_t end = 0;
  for (const Segment& segment : sorted) {
    if (segment.size != 0 && (!has_header || segments_at_ < length)) {
      return "no header that says where the segments begin";
    }
    if (segment.offset < end || segment.size > UINT64_MAX - segment.offset) return "segments that overlap";
    end = segment.offset + segment.size;
  }
  return "";
}

uint64_t ProgramTables::segment_size(uint64_t index) const {
  if (index < segments_.size()) return segments_[static_cast<size_t>(index)].size;
  bytes_.is_damaged = true;
  return 0;
}

std::optional<Plan> ProgramTables::plan(std::string_view name) const {
  for (const FlatTable& table : root().tables(kProgramExecutionPlan)) {
    if (table.text(kExecutionPlanName) != name) continue;
    Plan plan;
    plan.bytes = &bytes_;
    for (const FlatTable& value : table.tables(kExecutionPlanValues)) plan.values.push_back(read_value(value, bytes_));
    plan.inputs = table.integers(kExecutionPlanInputs);
    plan.outputs = table.integers(kExecutionPlanOutputs);
    for (const FlatTable& each : table.tables(kExecutionPlanOperators)) {
      const auto first = each.text(kOperatorName), overload = each.text(kOperatorOverload);
      bytes_.is_damaged |= !first.has_value();
      const std::string suffix = overload.value_or("").empty() ? "" : "." + std::string(*overload);
      plan.kernels.push_back(std::string(first.value_or("")) + suffix);
    }
    for (const FlatTable& each : table.tables(kExecutionPlanDelegates)) {
      const auto id = each.text(kBackendDelegateId);
      const FlatTable place = each.table(kBackendDelegateProcessed);
      const uint64_t location = place.number(kBackendDelegateDataReferenceLocation, 1);
      bytes_.is_damaged |= !id.has_value() || location > 1;
      for (const FlatTable& spec : each.tables(kBackendDelegateCompileSpecs)) {
        bytes_.is_damaged |= !spec.has(kCompileSpecKey);
      }
      plan.delegates.push_back(
          {std::string(id.value_or("")), location == 0, place.number(kBackendDelegateDataReferenceIndex)});
    }
    for (const FlatTable& chain : table.tables(kExecutionPlanChains)) {
      for (const FlatTable& each : chain.tables(kChainInstructions)) plan.calls.push_back(read_call(each, bytes_));
    }
    return plan;
  }
  return std::nullopt;
}

std::optional<std::string> ProgramTables::constant_text(std::string_view method) const {
  const std::optional<Plan> found = plan(method);
  if (!found.has_value() || found->outputs.size() != 1) return std::nullopt;
  const Value& value = found->value(found->outputs[0]);
  if (value.kind != Kind::kString) return std::nullopt;
  const auto text = value.table->text(kStringStringVal);
  return text.has_value() ? std::optional<std::string>(*text) : std::nullopt;
}

std::optional<DelegateBytes> ProgramTables::delegate_bytes(const Delegate& delegate) const {
  DelegateBytes bytes;
  if (delegate.is_inline) {
    const auto all = root().tables(kProgramBackendDelegateData);
    if (delegate.index >= all.size()) return std::nullopt;
    const auto data = all[static_cast<size_t>(delegate.index)].text(kBackendDelegateInlineDataData).value_or("");
    bytes.data = reinterpret_cast<const uint8_t*>(data.data());
    bytes.size = data.size();
    return bytes;
  }
  const uint64_t size = segment_size(delegate.index);
  if (is_damaged()) return std::nullopt;
  const uint64_t at = segments_at_ + segments_[static_cast<size_t>(delegate.index)].offset;
  const auto whole = loader_->size();
  if (!whole.ok() || at < segments_at_ || at > *whole || size > *whole - at) return std::nullopt;
  auto segment = loader_->load(static_cast<size_t>(at), static_cast<size_t>(size), Info(Info::Type::Backend));
  if (!segment.ok()) return std::nullopt;
  bytes.segment.emplace(std::move(*segment));
  bytes.data = static_cast<const uint8_t*>(bytes.segment->data());
  bytes.size = bytes.segment->size();
  return bytes;
}

std::vector<int64_t> ProgramTables::constant_sizes() const {
  std::vector<int64_t> sizes;
  if (!root().has(kProgramConstantSegment)) return sizes;
  const FlatTable place = root().table(kProgramConstantSegment);
  const std::vector<uint64_t> offsets = place.numbers(kSubsegmentOffsetsOffsets, 8);
  if (offsets.empty()) return sizes;
  std::vector<uint64_t> ends = offsets;
  std::sort(ends.begin(), ends.end());
  ends.push_back(segment_size(place.number(kSubsegmentOffsetsSegmentIndex)));
  for (const uint64_t at : offsets) {
    const uint64_t end = *std::upper_bound(ends.begin(), ends.end() - 1, at);
    sizes.push_back(static_cast<int64_t>(end - at));
  }
  return sizes;
}

std::map<std::string_view, uint64_t> ProgramTables::named_data() const {
  std::map<std::string_view, uint64_t> all;
  for (const FlatTable& named : root().tables(kProgramNamedData)) {
    all[named.text(kNamedDataKey).value_or("")] = segment_size(named.number(kNamedDataSegmentIndex));
  }
  return all;
}

} // namespace dimorder
