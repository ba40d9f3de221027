// Check the calls in a method: kinds and memory of arguments, divisors of 0, orders that kernels misread.
#include "argument_checks.h"

#include <dimorder/contract.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>

namespace dimorder {
namespace {

using namespace tables; // NOLINT: kinds and schemas

const char* schema_of(const std::string& kernel) {
  const auto* found = std::lower_bound(
      std::begin(kSchemas), std::end(kSchemas), kernel,
      [](const Schema& schema, const std::string& name) { return schema.kernel < name; });
  return found != std::end(kSchemas) && found->kernel == kernel ? found->arguments : nullptr;
}

bool gives_number(const char* letters) {
  return std::strchr(letters, '=') != nullptr;
}

unsigned bit(Kind kind) {
  return 1u << static_cast<unsigned>(kind);
}

std::string name_of(Kind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

bool has_memory(const TensorTable& tensor) {
  return tensor.constant != 0 || tensor.planned.has_value() || tensor.count == 0 || tensor.is_external ||
      tensor.is_unbound;
}

/// Return why a kernel's arguments are not those of its schema. Values in `given` get their numbers at run time.
std::string check_kinds(const Plan& plan, const Call& call, const char* letters, const std::set<int64_t>& given) {
  const auto is_zero = [&](int64_t index) {
    const Value& value = plan.value(index);
    return value.kind == Kind::kInt && value.table->number(kIntIntVal, 8) == 0 && given.count(index) == 0;
  };
  size_t count = 0;
  for (const char* at = letters; *at != '\0'; count++) {
    if (*at == '=') { // at the end
      const Kind result = call.arguments.empty() ? Kind::kNone : plan.value(call.arguments.back()).kind;
      return result == Kind::kInt || result == Kind::kDouble || result == Kind::kBool
          ? "" : "a result of kind " + name_of(result);
    }
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [at](const Type& each) { return each.letter == *at; });
    unsigned allowed = type->kinds;
    at++;
    if (*at == '?') allowed |= bit(Kind::kNull), at++;
    const bool divides = *at == '/';
    if (divides) at++;
    if (count >= call.arguments.size()) return "too few arguments";
    const int64_t index = call.arguments[count];
    const Value& value = plan.value(index);
    const std::string place = "argument " + std::to_string(count);
    if ((allowed & bit(value.kind)) == 0) return place + " is of kind " + name_of(value.kind);
    const bool has_zero = value.kind == Kind::kIntList
        ? std::any_of(value.items.begin(), value.items.end(), is_zero)
        : is_zero(index);
    if (divides && has_zero) return place + ", by which it divides, is 0";
  }
  return "";
}

using Operand = std::vector<const TensorTable*>;

char letter_of(const TensorTable& tensor, size_t rank) {
  const auto own = static_cast<int>(tensor.order.size());
  int contiguous[DIMORDER_MAX_RANK], last[DIMORDER_MAX_RANK];
  dimorder_contiguous(contiguous, own);
  dimorder_channels_last(last, own);
  if (dimorder_same(tensor.order.data(), contiguous, own)) return tensor.order.size() == rank ? 'C' : 'o';
  if (tensor.order.size() < rank) return 'X';
  if (dimorder_equivalent(tensor.order.data(), contiguous, own, tensor.sizes.data())) return 'l';
  return dimorder_same(tensor.order.data(), last, own) ? 'L' : 'X';
}

/// Return the call with its highest rank, and a letter for each operand; a list has each letter once.
Misread signed_call(const std::string& kernel, const std::vector<Operand>& operands) {
  size_t rank = 0;
  for (const Operand& operand : operands) {
    for (const TensorTable* tensor : operand) rank = std::max(rank, tensor->order.size());
  }
  std::string signature;
  for (const Operand& operand : operands) {
    std::set<char> letters;
    for (const TensorTable* tensor : operand) letters.insert(letter_of(*tensor, rank));
    signature.append(letters.begin(), letters.end());
  }
  return {kernel, static_cast<int>(rank), signature};
}

bool is_wrong(const Misread& call) {
  if (call.kernel == kView) return call.signature.find_first_not_of("Col") != std::string::npos;
  const std::string key = std::to_string(call.rank) + " " + call.signature;
  return std::any_of(std::begin(kWrong), std::end(kWrong), [&](const Wrong& wrong) {
    return call.kernel == wrong.kernel && key == wrong.signature;
  });
}

const TensorTable& tensor_at(const Plan& plan, int64_t index) {
  return *plan.value(index).tensor;
}

/// The tensors that were written so far, the latest last: memory is reused.
class Written {
 public:
  explicit Written(const Plan& plan) : plan_(plan) {}

  void add(int64_t index) {
    known_.erase(std::remove(known_.begin(), known_.end(), index), known_.end());
    known_.push_back(index);
  }

  /// The tensor whose memory an unknown tensor views; none if it is no view.
  std::optional<int64_t> seen_through(int64_t index) const {
    const TensorTable& own = tensor_at(plan_, index);
    if (!own.planned.has_value() || std::find(known_.begin(), known_.end(), index) != known_.end()) return std::nullopt;
    for (auto at = known_.rbegin(); at != known_.rend(); ++at) {
      const TensorTable& other = tensor_at(plan_, *at);
      if (other.planned == own.planned && other.count == own.count) return *at;
    }
    return std::nullopt;
  }

 private:
  const Plan& plan_;
  std::vector<int64_t> known_;
};

/// The operands of a call; a result, which a .pte lists twice, only once.
std::vector<Operand> operands_of(const Plan& plan, const std::vector<int64_t>& arguments) {
  std::vector<Operand> operands;
  std::set<int64_t> seen;
  for (size_t i = 0; i < arguments.size(); i++) {
    const std::vector<int64_t> items = plan.tensors_of(arguments[i]);
    const bool is_again = seen.count(arguments[i]) != 0 && i >= arguments.size() - arguments.size() / 2;
    if (items.empty() || is_again) continue;
    Operand operand;
    for (const int64_t item : items) operand.push_back(&tensor_at(plan, item));
    operands.push_back(operand);
    seen.insert(arguments[i]);
  }
  return operands;
}

} // namespace

std::string check_arguments(const Plan& plan) {
  for (const Value& value : plan.values) {
    const Kind of = value.kind == Kind::kIntList ? Kind::kInt : Kind::kTensor;
    for (const int64_t item : value.items) {
      if (item < 0 && value.kind == Kind::kOptionalTensorList) continue; // None
      if (plan.value(item).kind != of) return "values of another kind in " + name_of(value.kind);
    }
  }
  std::set<int64_t> given(plan.inputs.begin(), plan.inputs.end()); // values that get their memory or number at run time
  given.insert(plan.outputs.begin(), plan.outputs.end());
  for (const int64_t index : given) plan.value(index); // is there
  for (size_t i = 0; i < plan.calls.size(); i++) {
    const Call& call = plan.calls[i];
    const std::string place = "call " + std::to_string(i) + ", ";
    const Kind first = call.arguments.empty() ? Kind::kNone : plan.value(call.arguments[0]).kind;
    if (call.kind == Instruction::kMoveCall) {
      given.insert(call.arguments[1]);
      if (first != plan.value(call.arguments[1]).kind) return place + "a move to a value of another kind";
    }
    if (call.kind == Instruction::kJumpFalseCall && first != Kind::kBool && first != Kind::kTensor) {
      return place + "a jump by a value of kind " + name_of(first);
    }
    if (call.kind == Instruction::kFreeCall && (first != Kind::kTensor || !tensor_at(plan, call.arguments[0]).is_unbound)) {
      return place + "a value is freed whose memory is not its own";
    }
    std::vector<int64_t> tensors;
    for (const int64_t argument : call.arguments) {
      for (const int64_t tensor : plan.tensors_of(argument)) tensors.push_back(tensor);
    }
    if (call.kind == Instruction::kDelegateCall &&
        (call.index < 0 || static_cast<size_t>(call.index) >= plan.delegates.size())) {
      return place + "a delegate that the program lacks";
    }
    if (call.kind != Instruction::kKernelCall) continue;
    const std::string& kernel = plan.kernel_of(call);
    const char* letters = schema_of(kernel);
    if (letters == nullptr || kernel == kView) given.insert(tensors.begin(), tensors.end()); // a view does so
    if (letters == nullptr) continue;
    if (gives_number(letters) && !call.arguments.empty()) given.insert(call.arguments.back());
    const std::string why = check_kinds(plan, call, letters, given);
    if (!why.empty()) return place + kernel + ": " + why;
    for (const int64_t tensor : tensors) {
      if (given.count(tensor) == 0 && !has_memory(tensor_at(plan, tensor))) {
        return place + kernel + ": a tensor without memory";
      }
    }
  }
  return "";
}

std::string check_constant_sizes(const Plan& plan, const std::vector<int64_t>& sizes) {
  for (const Value& value : plan.values) {
    if (!value.tensor.has_value() || sizes.empty()) continue; // of an older ExecuTorch they lie in the tables
    const TensorTable& tensor = *value.tensor;
    const size_t itemsize = dimorder_itemsize(tensor.dtype);
    // Memory of its own has its first value in another segment.
    if (tensor.constant == 0 || tensor.planned.has_value() || tensor.is_external || itemsize == 0) continue;
    const int64_t given = tensor.constant < sizes.size() ? sizes[static_cast<size_t>(tensor.constant)] : -1;
    const auto needed = static_cast<int64_t>(tensor.count * itemsize);
    if (given < needed) {
      return "a constant of " + std::to_string(given) + " bytes for a tensor of " + std::to_string(needed);
    }
  }
  return "";
}

std::vector<Misread> misread_calls(const Plan& plan) {
  std::vector<Misread> found;
  Written known(plan);
  const auto add_if_wrong = [&found](Misread call) {
    if (is_wrong(call)) found.push_back(std::move(call));
  };
  for (const int64_t input : plan.inputs) {
    if (plan.value(input).kind == Kind::kTensor) known.add(input);
  }
  for (const Call& call : plan.calls) {
    if (call.kind != Instruction::kKernelCall && call.kind != Instruction::kDelegateCall) continue;
    const std::string& kernel = plan.kernel_of(call);
    std::vector<int64_t> items, written;
    for (const int64_t argument : call.arguments) {
      for (const int64_t item : plan.tensors_of(argument)) {
        if (std::find(items.begin(), items.end(), item) == items.end()) items.push_back(item);
      }
    }
    // A delegate's call does not say which of its tensors it writes: none of them counts as a view.
    written = kernel.empty() || call.arguments.empty() ? items : plan.tensors_of(call.arguments.back());
    for (const int64_t item : items) {
      if (std::find(written.begin(), written.end(), item) != written.end()) continue;
      const std::optional<int64_t> source = known.seen_through(item);
      if (source.has_value()) add_if_wrong(signed_call(kView, {{&tensor_at(plan, *source)}, {&tensor_at(plan, item)}}));
    }
    for (const int64_t item : written) known.add(item);
    if (!kernel.empty()) add_if_wrong(signed_call(kernel, operands_of(plan, call.arguments)));
  }
  return found;
}

std::string orders_in_words(const Misread& call) {
  std::string words;
  for (const char letter : call.signature) {
    int order[DIMORDER_MAX_RANK];
    char text[128];
    dimorder_message message = {text, sizeof text, 0};
    (letter == 'L' ? dimorder_channels_last : dimorder_contiguous)(order, call.rank);
    dimorder_put_order(&message, order, call.rank);
    words += words.empty() ? "" : ", ";
    if (letter == 'C' || letter == 'L') words += text;
    else words += letter == 'l' ? "an order of size-1 dims" : letter == 'X' ? "another order" : "fewer dims";
  }
  return words;
}

} // namespace dimorder
