// What is known of a .pte before it is run: whether it is whole, and the contract that it amounts to.
#include "file.h"

#include "seal.h"

#include <algorithm>
#include <cstring>

namespace dimorder {
namespace {

namespace et = ::executorch::runtime;
using Info = et::DataLoader::SegmentInfo;

uint64_t little_endian(const uint8_t* bytes, int count = 8) {
  uint64_t number = 0;
  for (int i = count - 1; i >= 0; i--) number = number << 8 | bytes[i];
  return number;
}

bool is_digit(uint8_t byte) {
  return byte >= '0' && byte <= '9';
}

constexpr char kNoHeader[] = "no header that says where the segments begin";

/// Why a tensor's own table is not what the contract promises; empty where it is.
std::string difference(const et::TensorInfo& own, const dimorder_contract& contract, const dimorder_tensor& promised) {
  const auto sizes = own.sizes();
  const auto order = own.dim_order();
  const auto rank = static_cast<size_t>(promised.rank);
  if (static_cast<int>(own.scalar_type()) != promised.dtype) return "another type";
  if (sizes.size() != rank || order.size() != rank) return "another number of dimensions";
  int own_order[DIMORDER_MAX_RANK], held[DIMORDER_MAX_RANK], wanted[DIMORDER_MAX_RANK];
  int64_t own_sizes[DIMORDER_MAX_RANK];
  dimorder_memory_order(&promised, held);
  for (size_t i = 0; i < rank; i++) {
    const size_t dim = promised.is_physical ? static_cast<size_t>(promised.order[i]) : i;
    const int64_t size = promised.sizes[dim];
    own_sizes[i] = sizes[i];
    own_order[i] = order[i];
    wanted[i] = promised.is_physical ? static_cast<int>(i) : held[i];
    if (size >= 0 && size != sizes[i]) return "other sizes";
    if (size < 0 && size != INT64_MIN) { // the program has the largest size that it was planned for
      const dimorder_symbol symbol = dimorder_dynamic_size(&contract, static_cast<int>(-1 - size));
      if (symbol.maximum > sizes[i]) return "a smaller largest size";
    }
  }
  if (!dimorder_is_order(own_order, promised.rank)) return "no order";
  return dimorder_equivalent(own_order, wanted, promised.rank, own_sizes) ? "" : "another order";
}

/// One line of a contract, of a tensor as ExecuTorch has it.
Finding write_tensor(
    const et::EValue& value, const std::string& kind, size_t index, std::string* line, std::string* symbols,
    int* count) {
  const std::string name = kind + std::to_string(index);
  if (!value.isTensor()) return {name + " is no tensor", "export it with tensors alone"};
  const auto& tensor = value.toTensor();
  const int dtype = static_cast<int>(tensor.scalar_type());
  if (dimorder_itemsize(dtype) == 0) {
    return {name + " is of a type that dimorder does not know", "use a float, integer or bool type"};
  }
  const bool is_static = tensor.unsafeGetTensorImpl()->shape_dynamism() == et::TensorShapeDynamism::STATIC;
  *line += kind + " " + name + " " + dimorder_dtype_name(dtype) + " logical " + std::to_string(tensor.dim());
  for (ssize_t dim = 0; dim < tensor.dim(); dim++) {
    const std::string size = std::to_string(tensor.size(dim)), label = name + "_size" + std::to_string(dim);
    if (is_static) {
      *line += " " + size;
    } else if (kind == "output") {
      *line += " =" + label;
    } else {
      *line += " $" + std::to_string((*count)++);
      *symbols += "symbol " + label + " 0 " + size + " 1\n";
    }
  }
  for (const auto dim : tensor.dim_order()) *line += " " + std::to_string(dim);
  *line += "\n";
  return {};
}

} // namespace

Finding check_file(const et::DataLoader& loader, bool with_seal) {
  const auto size = loader.size();
  if (!size.ok()) return {"a file that cannot be read", "give the path of a .pte file"};
  const size_t bytes = *size;
  const std::string told = std::to_string(bytes) + " bytes";
  const Finding no_program = {told + " that do not begin as a .pte does (ET12 at byte 4)", kAgain};
  constexpr size_t kHead = 40;
  if (bytes < kHead) return no_program;
  const auto head = loader.load(0, kHead, Info(Info::Type::Program));
  if (!head.ok()) return {"a file that cannot be read", "give the path of a .pte file"};
  const auto* data = static_cast<const uint8_t*>(head->data());
  if (data[4] != 'E' || data[5] != 'T' || !is_digit(data[6]) || !is_digit(data[7])) return no_program;
  if (std::memcmp(data + 8, "eh00", 4) == 0) {
    const bool has_segments = (little_endian(data + 8) >> 32) > 24; // an older ExecuTorch did not write their size
    const uint64_t program = little_endian(data + 16), at = little_endian(data + 24);
    const uint64_t segments = has_segments ? little_endian(data + 32) : 0;
    const uint64_t end = segments > UINT64_MAX - at ? UINT64_MAX : at + segments;
    const uint64_t whole = std::max(program, end);
    if (bytes < whole) return {told + " of " + std::to_string(whole) + ": it is cut off", kAgain};
    if (segments != 0 && at < program) return {kNoHeader, kAgain};
  }
  if (!with_seal) return {};
  const auto all = loader.load(0, bytes, Info(Info::Type::Program));
  if (!all.ok()) return {"a file that cannot be read whole", "check its seal where there is more memory"};
  switch (check_seal(static_cast<const uint8_t*>(all->data()), bytes)) {
    case Seal::kIntact: return {};
    case Seal::kBroken: return {"bytes other than those that were written (their SHA-256 differs)", kAgain};
    case Seal::kNone: break;
  }
  return {"no checksum of dimorder's in it", "open it without check_seal, or lower it with dimorder"};
}

Finding check_segments(const et::DataLoader& loader) {
  const auto size = loader.size();
  if (!size.ok()) return {"a file that cannot be read", "give the path of a .pte file"};
  const auto head = loader.load(0, std::min<size_t>(*size, 12), Info(Info::Type::Program));
  if (!head.ok() || std::memcmp(static_cast<const uint8_t*>(head->data()) + 8, "eh00", 4) == 0) return {};
  const auto all = loader.load(0, *size, Info(Info::Type::Program));
  if (!all.ok()) return {"a file that cannot be read whole", "open it where there is more memory"};
  const auto* data = static_cast<const uint8_t*>(all->data());
  const auto number = [data](size_t at, int count) { return little_endian(data + at, count); };
  const auto follow = [number](size_t at) { return at + number(at, 4); };
  const auto field = [number](size_t table, size_t index) { // 0 where it is absent
    const size_t vtable = table - static_cast<size_t>(static_cast<int32_t>(number(table, 4))), slot = 4 + 2 * index;
    const size_t at = number(vtable, 2) > slot ? number(vtable + slot, 2) : 0;
    return at == 0 ? 0 : table + at;
  };
  constexpr size_t kSegments = 4, kSize = 1; // fields of Program and of DataSegment
  const size_t segments = field(follow(0), kSegments), first = segments == 0 ? 0 : follow(segments);
  for (size_t i = 0; segments != 0 && i < number(first, 4); i++) {
    const size_t bytes = field(follow(first + 4 + 4 * i), kSize);
    if (bytes != 0 && number(bytes, 8) != 0) return {kNoHeader, kAgain};
  }
  return {};
}

Finding write_foreign_contract(et::Method& method, std::string* lines) {
  std::string tensors, symbols;
  int count = 0;
  const size_t inputs = method.inputs_size(), outputs = method.outputs_size();
  std::vector<et::EValue> values(inputs);
  // MethodMeta does not say whether a size is an upper bound; the method's own tensors do.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  if (method.get_inputs(values.data(), inputs) != et::Error::Ok) return {"inputs that cannot be read", kAgain};
#pragma GCC diagnostic pop
  for (size_t i = 0; i < inputs; i++) {
    if (Finding finding = write_tensor(values[i], "input", i, &tensors, &symbols, &count)) return finding;
  }
  for (size_t i = 0; i < outputs; i++) {
    if (Finding finding = write_tensor(method.get_output(i), "output", i, &tensors, &symbols, &count)) return finding;
  }
  *lines = "dimorder-contract " + std::to_string(DIMORDER_LINES_VERSION) + " " + std::to_string(inputs) + " " +
      std::to_string(outputs) + " " + std::to_string(count) + " 0\n" + tensors + symbols + "end\n";
  return {};
}

Finding compare_with_program(
    const et::MethodMeta& program, const dimorder_contract& contract, const std::vector<dimorder_tensor>& inputs,
    const std::vector<dimorder_tensor>& outputs) {
  if (program.num_inputs() != inputs.size() || program.num_outputs() != outputs.size()) {
    return {"a contract of another number of inputs or outputs than the program has", kAgain};
  }
  for (size_t i = 0; i < inputs.size() + outputs.size(); i++) {
    const bool is_input = i < inputs.size();
    const size_t index = is_input ? i : i - inputs.size();
    const auto own = is_input ? program.input_tensor_meta(index) : program.output_tensor_meta(index);
    const std::string why =
        own.ok() ? difference(*own, contract, is_input ? inputs[index] : outputs[index]) : "no tensor";
    if (!why.empty()) {
      const std::string place = (is_input ? "input " : "output ") + std::to_string(index);
      return {"a contract that is not the program's: for " + place + " that has " + why, kAgain};
    }
  }
  return {};
}

} // namespace dimorder
