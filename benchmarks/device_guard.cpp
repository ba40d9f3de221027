// Time calls whose inputs are in order: dimorder::Program beside ExecuTorch's Module and its bare Method.
//
//     device_guard FILE ROUNDS CALLS
//
// The three take turns of CALLS calls each, in another sequence every round. Prints a line for each turn, `NAME
// nanoseconds`, and then for each its heap allocations in one call, `NAME allocations COUNT`.
#include <dimorder/program.h>

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/module/module.h>
#include <executorch/runtime/executor/program.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace {
std::atomic<uint64_t> allocations{0};
} // namespace

// glibc's own, which those of this program stand before, also for the libraries that it loads.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  allocations++;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  allocations++;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  allocations++;
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  allocations++;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** to, size_t alignment, size_t bytes) {
  allocations++;
  *to = __libc_memalign(alignment, bytes);
  return *to == nullptr;
}
}

namespace {

namespace et = ::executorch::runtime;
using ::executorch::aten::TensorImpl;
using ::executorch::extension::MallocMemoryAllocator;
using ::executorch::extension::MmapDataLoader;
using ::executorch::extension::Module;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

/// ExecuTorch's method with no more around it than it needs.
struct Bare {
  std::unique_ptr<MmapDataLoader> loader;
  std::optional<et::Program> program;
  MallocMemoryAllocator method_memory, temporary;
  std::vector<std::vector<uint8_t>> planned;
  std::vector<et::Span<uint8_t>> spans;
  std::optional<et::HierarchicalAllocator> hierarchy;
  std::optional<et::MemoryManager> manager;
  std::optional<et::Method> method;

  explicit Bare(const char* path) {
    auto mapped = MmapDataLoader::from(path, MmapDataLoader::MlockConfig::NoMlock);
    require(mapped.ok(), "the file cannot be mapped");
    loader = std::make_unique<MmapDataLoader>(std::move(*mapped));
    auto opened = et::Program::load(loader.get());
    require(opened.ok(), "the file is no program");
    program.emplace(std::move(*opened));
    const auto meta = program->method_meta("forward");
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) {
      planned.emplace_back(static_cast<size_t>(*meta->memory_planned_buffer_size(i)));
      spans.emplace_back(planned.back().data(), planned.back().size());
    }
    hierarchy.emplace(et::Span<et::Span<uint8_t>>(spans.data(), spans.size()));
    manager.emplace(&method_memory, &*hierarchy, &temporary);
    auto loaded = program->load_method("forward", &*manager);
    require(loaded.ok(), "the method does not load");
    method.emplace(std::move(*loaded));
  }
};

/// An input as ExecuTorch has it: as the program's own signature shows it.
struct Input {
  TensorImpl::SizesType sizes[DIMORDER_MAX_RANK];
  TensorImpl::DimOrderType order[DIMORDER_MAX_RANK];
  TensorImpl::StridesType strides[DIMORDER_MAX_RANK];
  std::optional<TensorImpl> tensor;
};

} // namespace

int main(int count, char** arguments) {
  require(count == 4, "device_guard FILE ROUNDS CALLS");
  const char* path = arguments[1];
  const int rounds = std::atoi(arguments[2]), calls = std::atoi(arguments[3]);
  dimorder::Program guarded;
  dimorder::Options options;
  options.on_mismatch = dimorder::OnMismatch::kError;
  require(guarded.open(path, options) == dimorder::Error::Ok, guarded.message());
  Module module(path, Module::LoadMode::Mmap);
  require(module.load_forward() == dimorder::Error::Ok, "Module does not load it");
  Bare bare(path);

  std::vector<std::vector<float>> memory(guarded.inputs());
  std::vector<Input> inputs(guarded.inputs());
  std::vector<dimorder::Tensor> tensors;
  std::vector<et::EValue> values;
  for (size_t i = 0; i < inputs.size(); i++) {
    const dimorder_tensor& promised = guarded.input(i);
    require(promised.dtype == DIMORDER_FLOAT32 && !promised.is_physical, "inputs that this does not feed");
    int held[DIMORDER_MAX_RANK];
    dimorder_memory_order(&promised, held);
    tensors.push_back(dimorder::Tensor::in_order(
        nullptr, dimorder::ScalarType::Float, promised.sizes, held, promised.rank));
    memory[i].assign(tensors[i].numel(), 0.5f);
    tensors[i].data = memory[i].data();
    for (int dim = 0; dim < promised.rank; dim++) {
      inputs[i].sizes[dim] = static_cast<TensorImpl::SizesType>(promised.sizes[dim]);
      inputs[i].order[dim] = static_cast<TensorImpl::DimOrderType>(held[dim]);
      inputs[i].strides[dim] = static_cast<TensorImpl::StridesType>(tensors[i].strides[dim]);
    }
    inputs[i].tensor.emplace(
        dimorder::ScalarType::Float, promised.rank, inputs[i].sizes, memory[i].data(), inputs[i].order,
        inputs[i].strides);
    values.emplace_back(::executorch::aten::Tensor(&*inputs[i].tensor));
  }

  struct Way {
    const char* name;
    std::function<bool()> call;
  };
  const std::vector<Way> ways = {
      {"program", [&] { return guarded.run({tensors.data(), tensors.size()}).ok(); }},
      {"module", [&] { return module.forward(values).ok(); }},
      {"method",
       [&] {
         for (size_t i = 0; i < values.size(); i++) {
           if (bare.method->set_input(values[i], i) != dimorder::Error::Ok) return false;
         }
         return bare.method->execute() == dimorder::Error::Ok;
       }},
  };
  for (const Way& way : ways) {
    for (int i = 0; i < 100; i++) require(way.call(), way.name); // warm
  }
  require(guarded.stats().conversions == 0, "inputs that are not in order");
  for (int round = 0; round < rounds; round++) {
    for (size_t turn = 0; turn < ways.size(); turn++) {
      const Way& way = ways[(turn + static_cast<size_t>(round)) % ways.size()];
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; i++) require(way.call(), way.name);
      const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - start;
      std::printf("%s %.1f\n", way.name, passed.count() / calls);
    }
  }
  for (const Way& way : ways) {
    const uint64_t before = allocations;
    for (int i = 0; i < 100; i++) require(way.call(), way.name);
    std::printf("%s allocations %.2f\n", way.name, static_cast<double>(allocations - before) / 100);
  }
  return 0;
}
