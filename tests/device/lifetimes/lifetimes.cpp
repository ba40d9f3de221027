// Run a .pte by ExecuTorch's own API, from a loader that poisons what ExecuTorch frees.
//
//     lifetimes PROGRAM.pte INPUT.bin OUTPUT.bin [cache] [sharing=0|1|2] [twice]
//
// `cache` turns XNNPACK's weights cache on, `sharing` says which delegates share memory (0 none, 1 of a program,
// 2 all), and `twice` loads the method a second time, runs that on zeros, destroys it, and runs the first again.
#include "loaders.h"

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

namespace et = ::executorch::runtime;
using ::executorch::aten::TensorImpl;
using ::executorch::extension::MallocMemoryAllocator;

[[noreturn]] void stop(const char* what, et::Error error) {
  std::fprintf(stderr, "%s: %s\n", what, et::to_string(error));
  std::exit(1);
}

struct Loaded {
  MallocMemoryAllocator memory, temporary;
  std::vector<std::vector<uint8_t>> planned;
  std::vector<et::Span<uint8_t>> spans;
  std::optional<et::HierarchicalAllocator> hierarchy;
  std::optional<et::MemoryManager> manager;
  std::optional<et::Method> method;

  void load(const et::Program& program, const et::LoadBackendOptionsMap& options) {
    const auto meta = program.method_meta("forward");
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) {
      planned.emplace_back(static_cast<size_t>(*meta->memory_planned_buffer_size(i)));
    }
    for (auto& buffer : planned) spans.emplace_back(buffer.data(), buffer.size());
    hierarchy.emplace(et::Span<et::Span<uint8_t>>(spans.data(), spans.size()));
    manager.emplace(&memory, &*hierarchy, &temporary);
    auto loaded = program.load_method("forward", &*manager, nullptr, nullptr, &options);
    if (!loaded.ok()) stop("load_method", loaded.error());
    method.emplace(std::move(*loaded));
  }

  void run(std::vector<char>& bytes) {
    const auto meta = method->method_meta();
    size_t at = 0;
    for (size_t i = 0; i < method->inputs_size(); i++) {
      const auto info = meta.input_tensor_meta(i);
      std::vector<int32_t> sizes(info->sizes().begin(), info->sizes().end()), strides(sizes.size(), 1);
      std::vector<uint8_t> order(info->dim_order().begin(), info->dim_order().end());
      for (size_t d = sizes.size(); d-- > 1;) strides[order[d - 1]] = strides[order[d]] * sizes[order[d]];
      TensorImpl tensor(
          info->scalar_type(), static_cast<ssize_t>(sizes.size()), sizes.data(), bytes.data() + at, order.data(),
          strides.data());
      at += info->nbytes();
      const auto error = method->set_input(et::EValue(::executorch::aten::Tensor(&tensor)), i);
      if (error != et::Error::Ok) stop("set_input", error);
    }
    const auto error = method->execute();
    if (error != et::Error::Ok) stop("execute", error);
  }
};

} // namespace

int main(int count, char** words) {
  et::runtime_init();
  bool cache = false, twice = false;
  int sharing = 0;
  for (int i = 4; i < count; i++) {
    cache |= std::strcmp(words[i], "cache") == 0;
    twice |= std::strcmp(words[i], "twice") == 0;
    if (std::strncmp(words[i], "sharing=", 8) == 0) sharing = std::atoi(words[i] + 8);
  }
  const auto loader = dimorder::runner::open_hostile(words[1], dimorder::runner::Freed::kPoisoned);
  const auto program = et::Program::load(loader.get());
  if (!program.ok()) stop("load", program.error());
  et::BackendOptions<2> xnnpack;
  et::LoadBackendOptionsMap options;
  (void)xnnpack.set_option("weight_cache_enabled", cache);
  (void)xnnpack.set_option("workspace_sharing_mode", sharing);
  (void)options.set_options("XnnpackBackend", xnnpack.view());
  std::ifstream file(words[2], std::ios::binary);
  std::vector<char> input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto first = std::make_unique<Loaded>();
  first->load(*program, options);
  first->run(input);
  if (twice) {
    auto second = std::make_unique<Loaded>();
    std::vector<char> zeros(input.size());
    second->load(*program, options);
    second->run(zeros);
    first->run(input);
    second.reset();
    first->run(input);
  }
  std::ofstream made(words[3], std::ios::binary);
  for (size_t i = 0; i < first->method->outputs_size(); i++) {
    const auto tensor = first->method->get_output(i).toTensor();
    made.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  }
  return 0;
}
