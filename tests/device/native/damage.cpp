// Change bytes of a .pte, open what that gives from memory, and run it where it opens.
//
//     damage FILE COUNT SEED lines|anywhere|unsealed
//
// "lines" changes the contract's lines alone, without the seal; "anywhere" changes any byte and checks the seal;
// "unsealed" changes one byte and does not.
// Prints how many files were opened, ran, and were refused. A fault ends it: by a sanitizer, or by exit 3 where a
// message has not three lines.
#include <dimorder/program.h>

#include <executorch/extension/data_loader/buffer_data_loader.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using ::executorch::extension::BufferDataLoader;

struct Counts {
  int opened = 0, ran = 0, refused = 0, refused_calls = 0;
};

void require_three_lines(const char* message) {
  if (std::count(message, message + std::strlen(message), '\n') == 2) return;
  std::fprintf(stderr, "not three lines: %s\n", message);
  std::exit(3);
}

/// Tensors that are what the contract promises, of the least sizes that it allows; empty where they are large.
std::vector<dimorder::Tensor> right_inputs(const dimorder::Program& program, std::vector<std::vector<char>>& memory) {
  std::vector<dimorder::Tensor> tensors;
  for (size_t i = 0; i < program.inputs(); i++) {
    const dimorder_tensor& promised = program.input(i);
    int64_t sizes[DIMORDER_MAX_RANK] = {};
    double elements = 1;
    for (int dim = 0; dim < promised.rank; dim++) {
      const int64_t size = promised.sizes[dim];
      sizes[dim] = size >= 0 ? size : dimorder_dynamic_size(&program.contract(), static_cast<int>(-1 - size)).minimum;
      elements *= static_cast<double>(std::max<int64_t>(sizes[dim], 1));
    }
    if (elements > 1e7) return {};
    memory.emplace_back(static_cast<size_t>(elements) * 8 + 8, char{1});
    tensors.push_back(dimorder::Tensor::in_order(
        memory.back().data(), static_cast<dimorder::ScalarType>(promised.dtype), sizes, promised.order,
        promised.rank));
  }
  return tensors;
}

void open_and_run(const std::vector<char>& bytes, bool check_seal, Counts& counts) {
  // Aligned as a file's pages are, and no longer than the file, so that a sanitizer sees its end.
  const size_t room = (bytes.size() + 63) / 64 * 64 + 64;
  std::unique_ptr<char, decltype(&std::free)> pages(static_cast<char*>(std::aligned_alloc(64, room)), &std::free);
  std::copy(bytes.begin(), bytes.end(), pages.get());
  dimorder::Program program;
  dimorder::Options options;
  options.check_seal = check_seal;
  if (program.open(std::make_unique<BufferDataLoader>(pages.get(), bytes.size()), "memory", options) !=
      dimorder::Error::Ok) {
    counts.refused++;
    require_three_lines(program.message());
    if (program.run(executorch::runtime::Span<const dimorder::Tensor>()).ok()) std::exit(3);
    return;
  }
  counts.opened++;
  std::vector<std::vector<char>> memory;
  const std::vector<dimorder::Tensor> inputs = right_inputs(program, memory);
  if (inputs.size() != program.inputs()) return;
  auto outputs = program.run({inputs.data(), inputs.size()});
  if (!outputs.ok()) {
    counts.refused_calls++;
    require_three_lines(program.message());
    return;
  }
  counts.ran++;
  for (const auto& output : *outputs) { // all of it can be read
    std::vector<char> copy(output.nbytes());
    dimorder::Tensor to = dimorder::Tensor::dense(copy.data(), output.dtype, output.sizes, output.rank);
    dimorder::convert(output, to);
  }
}

} // namespace

int main(int count, char** arguments) {
  if (count != 5) return 2;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::vector<char> whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const bool is_lines = std::strcmp(arguments[4], "lines") == 0;
  const bool is_sealed = std::strcmp(arguments[4], "anywhere") == 0;
  size_t length = whole.size(), begin = 0;
  if (is_lines) {
    const char* lines = dimorder_find_contract(whole.data(), whole.size(), &length);
    if (lines == nullptr) return 2;
    begin = static_cast<size_t>(lines - whole.data());
  }
  std::mt19937_64 random(std::strtoull(arguments[3], nullptr, 10));
  const auto draw = [&random](size_t below) { return static_cast<size_t>(random() % below); };
  const std::string telling = " \n0123456789-$=%abcdefnxphysicallogicalscale";
  Counts counts, untouched;
  open_and_run(whole, false, untouched);
  if (untouched.ran != 1) return 4;
  for (int i = 0; i < std::atoi(arguments[2]); i++) {
    std::vector<char> changed = whole;
    for (size_t edits = is_lines || is_sealed ? draw(3) + 1 : 1; edits > 0; edits--) {
      char& byte = changed[begin + draw(length)];
      byte = is_lines && draw(4) != 0 ? telling[draw(telling.size())] : static_cast<char>(draw(256));
    }
    if (is_sealed && draw(8) == 0) changed.resize(draw(changed.size()));
    if (changed == whole) continue;
    open_and_run(changed, is_sealed, counts);
  }
  std::printf("%d %d %d %d\n", counts.opened, counts.ran, counts.refused, counts.refused_calls);
  return 0;
}
