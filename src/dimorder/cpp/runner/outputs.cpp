// Keep a program's outputs, say what is in them, and write them.
#include "outputs.h"

#include "contract_text.h"
#include "npy.h"
#include "numbers.h"

#include <cmath>
#include <utility>

namespace dimorder::runner {
namespace {

constexpr size_t kTop = 5;

/// Put a value among the largest ones, behind those that are equal.
void insert(std::vector<Place>& largest, Place place) {
  if (largest.size() == kTop && place.value <= largest.back().value) return;
  if (largest.size() == kTop) largest.pop_back();
  size_t at = largest.size();
  while (at > 0 && largest[at - 1].value < place.value) at--;
  largest.insert(largest.begin() + static_cast<std::ptrdiff_t>(at), place);
}

/// Adds numbers, and keeps what rounding loses.
class Sum {
 public:
  void add(double number) {
    const double sum = sum_ + number;
    lost_ += std::fabs(sum_) >= std::fabs(number) ? (sum_ - sum) + number : (number - sum) + sum_;
    sum_ = sum;
  }

  double value() const {
    return std::isfinite(lost_) ? sum_ + lost_ : sum_;
  }

 private:
  double sum_ = 0, lost_ = 0;
};

std::string file_of(const Settings& settings, const Program& program, size_t index) {
  if (program.outputs() == 1) return settings.output;
  const std::string folder = settings.output + (settings.output.back() == '/' ? "" : "/");
  return folder + name_of(program.output(index)) + ".npy";
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

Failure check_folder(const std::string& path, const Program& program) {
  const std::string where = "-o " + path, found = std::to_string(program.outputs()) + " outputs for one ";
  if (ends_with(path, ".npz")) return {where, found + ".npz, which this program does not write", "name a folder"};
  if (ends_with(path, ".npy")) return {where, found + ".npy", "name a folder: each becomes NAME.npy in it"};
  if (exists(path) && !is_folder(path)) return {where, "a file, for several outputs", "name a folder"};
  for (size_t i = 0; i < program.outputs(); i++) {
    const std::string name = name_of(program.output(i));
    if (!is_file_name(name)) return {where, "an output '" + name + "' that no file can be called", "leave -o out"};
  }
  return {};
}

} // namespace

Failure copy_outputs(const Span<const Tensor>& outputs, std::vector<Array>* copies) {
  copies->clear();
  copies->resize(outputs.size());
  for (size_t i = 0; i < outputs.size(); i++) {
    Array& copy = (*copies)[i];
    if (!copy.memory.resize(outputs[i].nbytes())) return {"the outputs", "no memory for a copy", "free some", kNo};
    copy.tensor = Tensor::dense(copy.memory.data(), outputs[i].dtype, outputs[i].sizes, outputs[i].rank);
    convert(outputs[i], copy.tensor);
  }
  return {};
}

Summary summarise(const Tensor& tensor) {
  Summary summary;
  Sum sum;
  for (size_t i = 0; i < tensor.numel(); i++) {
    const double value = element(tensor.data, static_cast<int>(tensor.dtype), i);
    if (!std::isfinite(value)) continue;
    const bool is_first = summary.finite++ == 0;
    if (is_first || value < summary.minimum) summary.minimum = value;
    if (is_first || value > summary.maximum) summary.maximum = value;
    insert(summary.largest, {i, value});
    sum.add(value);
  }
  if (summary.finite != 0) summary.mean = sum.value() / static_cast<double>(summary.finite);
  return summary;
}

std::vector<int64_t> indices(const Tensor& tensor, size_t index) {
  std::vector<int64_t> found(static_cast<size_t>(tensor.rank));
  for (size_t dim = found.size(); dim-- > 0;) {
    const auto size = static_cast<size_t>(tensor.sizes[dim]);
    found[dim] = static_cast<int64_t>(index % size);
    index /= size;
  }
  return found;
}

std::string indices_text(const Tensor& tensor, size_t index) {
  std::string text = "[";
  for (const int64_t each : indices(tensor, index)) text += (text.size() == 1 ? "" : ", ") + std::to_string(each);
  return text + "]";
}

Failure check_output(const Settings& settings, const Program* program) {
  const std::string& path = settings.output;
  if (path.empty()) return {};
  if (program == nullptr) return ends_with(path, ".npy") ? check_writable("-o", path) : Failure();
  if (program->outputs() != 1) return check_folder(path, *program);
  if (!ends_with(path, ".npy")) return {"-o " + path, "no .npy", "name a .npy file"};
  return {};
}

Failure write_outputs(const Settings& settings, const Program& program, const std::vector<Array>& outputs) {
  if (settings.output.empty()) return {};
  std::vector<NewFile> files(outputs.size());
  for (size_t i = 0; i < outputs.size(); i++) {
    if (Failure failure = encode_npy(file_of(settings, program, i), outputs[i].tensor, &files[i])) return failure;
  }
  if (outputs.size() != 1) {
    if (Failure failure = make_folder(settings.output)) return failure;
  }
  return write_files(files);
}

} // namespace dimorder::runner
