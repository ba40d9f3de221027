// Compare outputs with what they should be.
#include "expect.h"

#include "contract_text.h"
#include "files.h"
#include "inputs.h"
#include "npy.h"
#include "numbers.h"
#include "outputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dimorder::runner {
namespace {

bool is_floating(const Tensor& tensor) {
  return dimorder_is_floating(static_cast<int>(tensor.dtype)) != 0;
}

/// How far two elements are apart. Of integers it is exact, and then rounded: a double has but 53 bits.
double distance(const Tensor& given, const Tensor& wanted, size_t index) {
  const int types[] = {static_cast<int>(given.dtype), static_cast<int>(wanted.dtype)};
  if (is_floating(given) || is_floating(wanted)) {
    return std::fabs(element(given.data, types[0], index) - element(wanted.data, types[1], index));
  }
  const int64_t a = integer(given.data, types[0], index), b = integer(wanted.data, types[1], index);
  const uint64_t upwards = static_cast<uint64_t>(b) - static_cast<uint64_t>(a);
  return static_cast<double>(a < b ? upwards : uint64_t{0} - upwards);
}

/// Two numbers of which one is not finite: the same infinity, or both NaN.
bool is_same_special(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b;
}

/// Whether two elements have the same bits. float32 stands for bfloat16, which it widens.
bool is_same_bits(const Tensor& given, const Tensor& wanted, size_t index) {
  const size_t itemsize = dimorder_itemsize(static_cast<int>(given.dtype));
  uint32_t wide = 0;
  uint16_t narrow = 0;
  if (given.dtype == wanted.dtype) {
    return std::memcmp(
        given.data_as<char>() + index * itemsize, wanted.data_as<char>() + index * itemsize, itemsize) == 0;
  }
  std::memcpy(&narrow, given.data_as<char>() + index * 2, 2);
  std::memcpy(&wide, wanted.data_as<char>() + index * 4, 4);
  return wide == static_cast<uint32_t>(narrow) << 16;
}

std::string type_text(const Tensor& tensor) {
  return std::string(dimorder_dtype_name(static_cast<int>(tensor.dtype))) + " " + shape_of(tensor);
}

/// Why two tensors are not compared; empty where they are.
std::string mismatch(const Tensor& given, const Tensor& wanted, bool is_exact) {
  const bool same_sizes =
      given.rank == wanted.rank && std::equal(given.sizes, given.sizes + given.rank, wanted.sizes);
  const bool stands_in = given.dtype == ScalarType::BFloat16 && wanted.dtype == ScalarType::Float;
  // No double has every int64.
  const bool is_rounded = (given.dtype == ScalarType::Long && is_floating(wanted)) ||
      (wanted.dtype == ScalarType::Long && is_floating(given));
  if (same_sizes && !is_rounded && (!is_exact || given.dtype == wanted.dtype || stands_in)) return "";
  return type_text(given) + ", where " + type_text(wanted) + " is expected";
}

/// Collects errors over all elements.
class Comparison {
 public:
  Comparison(const Tensor& given, const Tensor& wanted, bool is_exact)
      : given_(given), wanted_(wanted), is_exact_(is_exact) {}

  void add(size_t index) {
    const double a = element(given_.data, static_cast<int>(given_.dtype), index);
    const double b = element(wanted_.data, static_cast<int>(wanted_.dtype), index);
    const bool is_finite = std::isfinite(a) && std::isfinite(b);
    if (std::isfinite(b)) magnitude = std::max(magnitude, std::fabs(b));
    if (is_exact_ ? !is_same_bits(given_, wanted_, index) : !is_finite && !is_same_special(a, b)) {
      if (wrong++ == 0) first_wrong = index;
    }
    const double apart = distance(given_, wanted_, index);
    if (!is_finite || apart <= error) return;
    error = apart;
    worst = index;
  }

  double error = 0, magnitude = 0;
  size_t worst = 0, wrong = 0, first_wrong = 0;

 private:
  const Tensor& given_;
  const Tensor& wanted_;
  bool is_exact_;
};

std::string value_at(const Tensor& tensor, size_t index) {
  if (!is_floating(tensor)) return std::to_string(integer(tensor.data, static_cast<int>(tensor.dtype), index));
  return six_digits(element(tensor.data, static_cast<int>(tensor.dtype), index));
}

} // namespace

Failure read_expectations(const Program& program, const Settings& settings, std::vector<Expectation>* expectations) {
  const std::vector<std::string>& given = settings.expectations;
  std::vector<std::string> names, files;
  if (given.empty()) return {};
  for (size_t i = 0; i < program.outputs(); i++) names.push_back(name_of(program.output(i)));
  if (Failure failure = assign_files("--expect", "output", names, given, false, &files)) return failure;
  for (size_t i = 0; i < files.size(); i++) {
    if (files[i].empty()) continue;
    const std::string where = "--expect " + files[i];
    if (!ends_with(files[i], ".npy")) return {where, "no .npy", "name a .npy file"};
    Array own;
    if (Failure failure = read_npy(where, files[i], &own)) return failure;
    std::vector<Array> dense;
    if (Failure failure = copy_outputs(Span<const Tensor>(&own.tensor, 1), &dense)) return failure;
    expectations->push_back({i, files[i], std::move(dense[0])});
  }
  return {};
}

Difference compare(
    const Program& program, const Settings& settings, const Expectation& expectation, const Tensor& output) {
  const Tensor& wanted = expectation.array.tensor;
  Difference difference;
  difference.name = name_of(program.output(expectation.output));
  difference.why = mismatch(output, wanted, settings.is_exact);
  if (!difference.why.empty()) return difference;
  Comparison found(output, wanted, settings.is_exact);
  const size_t count = output.numel();
  for (size_t i = 0; i < count; i++) found.add(i);
  difference.error = found.error;
  difference.magnitude = found.magnitude;
  // A relative error of an index would be another index: integers are compared exactly.
  const double relative = is_floating(output) ? settings.rtol * found.magnitude : 0;
  difference.allowed = settings.is_exact ? 0 : relative + settings.atol;
  difference.place = count == 0 ? "" : indices_text(output, found.worst);
  if (found.wrong != 0) {
    const size_t first = found.first_wrong;
    difference.why = std::to_string(found.wrong) + " of " + std::to_string(count) +
        (settings.is_exact ? " values have other bits" : " values are another NaN or infinity than expected, or none") +
        ", the first at " + indices_text(output, first) + ": " + value_at(output, first) + ", where " +
        value_at(wanted, first) + " is expected";
  } else if (difference.error > difference.allowed) {
    difference.why = "an error of " + six_digits(difference.error) + " at " + difference.place + ", where " +
        six_digits(difference.allowed) + " is allowed: " + value_at(output, found.worst) + ", where " +
        value_at(wanted, found.worst) + " is expected";
  }
  return difference;
}

std::string line_of(const Difference& difference) {
  std::string line = "expect " + difference.name + "  ";
  if (difference.place.empty()) return line + (difference.why.empty() ? "no values" : "not compared");
  line += "largest error " + six_digits(difference.error) + " at " + difference.place;
  line += " of " + six_digits(difference.magnitude) + ", allowed " + six_digits(difference.allowed);
  return line + (difference.why.empty() ? ": equal" : ": not equal");
}

void write_difference(JsonWriter& json, const Difference& difference) {
  json.begin('{');
  json.key("name").text(difference.name);
  json.key("equal").boolean(difference.why.empty());
  json.key("largest_error").number(difference.place.empty() ? NAN : difference.error);
  json.key("allowed").number(difference.place.empty() ? NAN : difference.allowed);
  json.key("why");
  difference.why.empty() ? json.null() : json.text(difference.why);
  json.end('}');
}

} // namespace dimorder::runner
