// Check the calls in a method: kinds and memory of arguments, divisors of 0, orders that kernels misread.
#include "argument_checks.h"

#include <dimorder/contract.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>

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
    const auto refuse = [count](const std::string& why) { return "argument " + std::to_string(count) + why; };
    if ((allowed & bit(value.kind)) == 0) return refuse(" is of kind " + name_of(value.kind));
    const bool has_zero = value.kind == Kind::kIntList
        ? std::any_of(value.items.begin(), value.items.end(), is_zero)
        : is_zero(index);
    if (divides && has_zero) return refuse(", by which it divides, is 0");
  }
  return "";
}

const TensorTable& tensor_at(const Plan& plan, int64_t index) {
  return *plan.value(index).tensor;
}

int rank_of(const TensorTable& tensor) {
  return static_cast<int>(tensor.order.size());
}

char letter_of(const TensorTable& tensor, int rank) {
  const int own = rank_of(tensor);
  int contiguous[DIMORDER_MAX_RANK], last[DIMORDER_MAX_RANK];
  dimorder_contiguous(contiguous, own);
  dimorder_channels_last(last, own);
  if (dimorder_same(tensor.order.data(), contiguous, own)) return own == rank ? 'C' : 'o';
  if (own < rank) return 'X';
  if (dimorder_equivalent(tensor.order.data(), contiguous, own, tensor.sizes.data())) return 'l';
  return dimorder_same(tensor.order.data(), last, own) ? 'L' : 'X';
}

/// Return a call with its highest rank, and letters for each argument: a list has each letter once, and a result,
/// which a .pte lists twice, counts once.
Misread signed_call(const Plan& plan, const std::string& kernel, const std::vector<int64_t>& arguments) {
  Misread call = {kernel, 0, ""};
  for (const int64_t argument : arguments) {
    for (const int64_t item : plan.tensors_of(argument)) call.rank = std::max(call.rank, rank_of(tensor_at(plan, item)));
  }
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto at = arguments.begin() + static_cast<ptrdiff_t>(i);
    const bool is_again = i >= arguments.size() - arguments.size() / 2 && std::find(arguments.begin(), at, *at) != at;
    if (is_again) continue;
    std::string letters;
    for (const int64_t item : plan.tensors_of(*at)) letters += letter_of(tensor_at(plan, item), call.rank);
    for (const char letter : std::string_view("CLXlo")) {
      if (letters.find(letter) != std::string::npos) call.signature += letter;
    }
  }
  return call;
}

/// Whether a kernel gives wrong numbers for any orders.
bool may_be_wrong(const std::string& kernel) {
  const auto is_of_kernel = [&](const Wrong& wrong) { return kernel == wrong.kernel; };
  return kernel == kView || std::any_of(std::begin(kWrong), std::end(kWrong), is_of_kernel);
}

bool is_wrong(const Misread& call) {
  if (call.kernel == kView) return call.signature.find_first_not_of("Col") != std::string::npos;
  const std::string key = std::to_string(call.rank) + " " + call.signature;
  return std::any_of(std::begin(kWrong), std::end(kWrong), [&](const Wrong& wrong) {
    return call.kernel == wrong.kernel && key == wrong.signature;
  });
}

/// The tensors that were written so far. Memory is reused: of each place, the latest.
class Written {
 public:
  explicit Written(const Plan& plan) : plan_(plan) {}

  void add(int64_t index) {
    known_.insert(index);
    if (tensor_at(plan_, index).planned.has_value()) latest_[place_of(index)] = index;
  }

  /// The tensor whose memory an unknown tensor views; none if it is no view.
  std::optional<int64_t> seen_through(int64_t index) const {
    if (!tensor_at(plan_, index).planned.has_value() || known_.count(index) != 0) return std::nullopt;
    const auto found = latest_.find(place_of(index));
    return found == latest_.end() ? std::nullopt : std::optional<int64_t>(found->second);
  }

 private:
  using Place = std::array<uint64_t, 4>; // with the count of elements

  Place place_of(int64_t index) const {
    const TensorTable& tensor = tensor_at(plan_, index);
    const auto& [id, low, high] = *tensor.planned;
    return {id, low, high, tensor.count};
  }

  const Plan& plan_;
  std::set<int64_t> known_;
  std::map<Place, int64_t> latest_;
};

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
  std::vector<const char*> schemas(plan.kernels.size()); // of the operators
  std::transform(plan.kernels.begin(), plan.kernels.end(), schemas.begin(), schema_of);
  for (size_t i = 0; i < plan.calls.size(); i++) {
    const Call& call = plan.calls[i];
    const auto refuse = [i](const std::string& why) { return "call " + std::to_string(i) + ", " + why; };
    const Kind first = call.arguments.empty() ? Kind::kNone : plan.value(call.arguments[0]).kind;
    if (call.kind == Instruction::kMoveCall) {
      given.insert(call.arguments[1]);
      if (first != plan.value(call.arguments[1]).kind) return refuse("a move to a value of another kind");
    }
    if (call.kind == Instruction::kJumpFalseCall && first != Kind::kBool && first != Kind::kTensor) {
      return refuse("a jump by a value of kind " + name_of(first));
    }
    if (call.kind == Instruction::kFreeCall && (first != Kind::kTensor || !tensor_at(plan, call.arguments[0]).is_unbound)) {
      return refuse("a value is freed whose memory is not its own");
    }
    std::vector<int64_t> tensors;
    for (const int64_t argument : call.arguments) {
      for (const int64_t tensor : plan.tensors_of(argument)) tensors.push_back(tensor);
    }
    if (call.kind == Instruction::kDelegateCall &&
        (call.index < 0 || static_cast<size_t>(call.index) >= plan.delegates.size())) {
      return refuse("a delegate that the program lacks");
    }
    if (call.kind != Instruction::kKernelCall) continue;
    const std::string& kernel = plan.kernel_of(call);
    const char* letters = kernel.empty() ? nullptr : schemas[static_cast<size_t>(call.index)];
    if (letters == nullptr || kernel == kView) given.insert(tensors.begin(), tensors.end()); // a view does so
    if (letters == nullptr) continue;
    if (gives_number(letters) && !call.arguments.empty()) given.insert(call.arguments.back());
    const std::string why = check_kinds(plan, call, letters, given);
    if (!why.empty()) return refuse(kernel + ": " + why);
    for (const int64_t tensor : tensors) {
      if (given.count(tensor) == 0 && !has_memory(tensor_at(plan, tensor))) {
        return refuse(kernel + ": a tensor without memory");
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
  std::set<int64_t> suspects; // operators
  for (size_t i = 0; i < plan.kernels.size(); i++) {
    if (may_be_wrong(plan.kernels[i])) suspects.insert(static_cast<int64_t>(i));
  }
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
      if (source.has_value()) add_if_wrong(signed_call(plan, kView, {*source, item}));
    }
    for (const int64_t item : written) known.add(item);
    if (!kernel.empty() && suspects.count(call.index) != 0) add_if_wrong(signed_call(plan, kernel, call.arguments));
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
