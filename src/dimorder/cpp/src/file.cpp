// What is known of a .pte before it is run: whether it is whole, and the contract that it amounts to.
#include "file.h"

#include "delegate_checks.h"
#include "seal.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

namespace dimorder {
namespace {

namespace et = ::executorch::runtime;
using Info = et::DataLoader::SegmentInfo;

Finding missing_constant(const std::string& name) {
  char text[1024];
  dimorder_message found = {text, sizeof text, 0};
  dimorder_puts(&found, "the constant ");
  dimorder_put_quoted(&found, {name.data(), name.size()});
  dimorder_puts(&found, ", which the file lacks");
  return {text, std::string(kAgain) + "; a .ptd beside it is not read"};
}

/// Refuse a delegate of XNNPACK that is damaged or called with other arguments than tensors, and list the
/// operators in it that give wrong numbers.
Finding check_delegate(
    const ProgramTables& program, const Plan& plan, size_t index,
    const std::map<std::string_view, uint64_t>& named_data, std::vector<Misread>* misread) {
  const std::optional<DelegateBytes> bytes = program.delegate_bytes(plan.delegates[index]);
  if (!bytes.has_value()) return inconsistent("a delegate that the file lacks");
  XnnGraph graph(bytes->data, bytes->size);
  std::optional<std::string> missing;
  std::string why = graph.damage(named_data, &missing);
  for (const Call& call : plan.calls) {
    if (call.kind != tables::Instruction::kDelegateCall || static_cast<size_t>(call.index) != index) continue;
    if (why.empty()) why = graph.check_arguments(plan, call.arguments);
    if (!why.empty() || misread == nullptr) continue;
    std::vector<const TensorTable*> tensors;
    for (const int64_t argument : call.arguments) {
      for (const int64_t tensor : plan.tensors_of(argument)) tensors.push_back(&*plan.value(tensor).tensor);
    }
    const std::vector<Misread> found = graph.misread(tensors);
    misread->insert(misread->end(), found.begin(), found.end());
    if (graph.is_damaged()) why = "a place that does not exist";
  }
  if (why.empty()) return missing.has_value() ? missing_constant(*missing) : Finding();
  return {
      "delegate " + std::to_string(index) + " (" + tables::kXnnpack + "): " + std::to_string(bytes->size) +
          " bytes that cannot be read (" + why + ")",
      kAgain};
}

bool is_digit(uint8_t byte) {
  return byte >= '0' && byte <= '9';
}

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

Finding inconsistent(const std::string& why) {
  return {"tables that contradict each other (" + why + ")", kAgain};
}

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
    const FlatBytes header{data, kHead};
    const bool has_segments = header.number(12, 4) > 24; // an older ExecuTorch did not write their size
    const uint64_t program = header.number(16, 8), at = header.number(24, 8);
    const uint64_t segments = has_segments ? header.number(32, 8) : 0;
    const uint64_t end = segments > UINT64_MAX - at ? UINT64_MAX : at + segments;
    const uint64_t whole = std::max(program, end);
    if (bytes < whole) return {told + " of " + std::to_string(whole) + ": it is cut off", kAgain};
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

Finding check_tables(
    const ProgramTables& program, const Plan& plan, bool is_foreign, std::vector<Misread>* misread) {
  std::string why = check_arguments(plan);
  if (why.empty()) why = check_constant_sizes(plan, program.constant_sizes());
  if (why.empty() && !program.is_damaged()) *misread = misread_calls(plan);
  const auto named_data = program.named_data();
  for (size_t i = 0; why.empty() && i < plan.delegates.size() && !program.is_damaged(); i++) {
    if (plan.delegates[i].id != tables::kXnnpack) continue;
    if (Finding finding = check_delegate(program, plan, i, named_data, is_foreign ? misread : nullptr)) return finding;
  }
  if (why.empty() && program.is_damaged()) why = "a place that does not exist";
  if (!why.empty()) return inconsistent(why);
  for (const Value& value : plan.values) {
    if (value.tensor.has_value() && value.tensor->is_external) return missing_constant(value.tensor->name);
  }
  return {};
}

Finding describe_misread(const std::vector<Misread>& calls) {
  if (calls.empty()) return {};
  const size_t others = calls.size() - 1;
  const std::string more = others == 0 ? "" : " (and " + std::to_string(others) + " more such calls)";
  return {
      "it calls " + calls[0].kernel + " in " + orders_in_words(calls[0]) + more +
          ": that kernel returns wrong numbers, silently",
      "lower it again with canonicalize(program), and with transform_passes=[legalize] or "
      "partitioner=[guarded(XnnpackPartitioner(), XNNPACK)], all of dimorder.executorch; "
      "`dimorder check` lists every such call"};
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
