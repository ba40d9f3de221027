// Open a .pte, hold a caller's tensors to its contract, and run it.
#include <dimorder/program.h>

#include "file.h"

#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#ifdef DIMORDER_WITHOUT_MESSAGES
#error "DIMORDER_WITHOUT_MESSAGES is for programs of contract.h alone: message() has these texts"
#endif

namespace dimorder {
namespace {

namespace et = ::executorch::runtime;
using ::executorch::extension::FileDataLoader;
using ::executorch::extension::MallocMemoryAllocator;
using ::executorch::extension::MmapDataLoader;
using TensorImpl = ::executorch::aten::TensorImpl;

constexpr char kMethod[] = "forward";
constexpr size_t kMessageBytes = 4096;
constexpr size_t kReadBeyond = 128; // bytes that XNNPACK may read past the end of what it computes on

/// Whether an address lies in so many bytes of memory.
bool is_in(const void* data, const void* memory, size_t bytes) {
  const auto *address = static_cast<const uint8_t*>(data), *begin = static_cast<const uint8_t*>(memory);
  return std::less_equal<>()(begin, address) && std::less<>()(address, begin + bytes);
}

/// Whether memory of so many bytes, and what kernels read beyond it, can have a size at all.
bool is_size(size_t bytes) {
  return bytes < SIZE_MAX - kReadBeyond;
}

/// Memory that grows and never shrinks.
class Scratch {
 public:
  void* of(size_t bytes) {
    if (!is_size(bytes)) return nullptr;
    if (bytes > bytes_ || memory_ == nullptr) {
      memory_.reset(new (std::nothrow) uint64_t[(bytes + kReadBeyond) / sizeof(uint64_t) + 1]);
      bytes_ = memory_ == nullptr ? 0 : bytes;
    }
    return memory_.get();
  }

  bool holds(const void* data) const {
    return is_in(data, memory_.get(), bytes_);
  }

 private:
  std::unique_ptr<uint64_t[]> memory_;
  size_t bytes_ = 0;
};

/// Whether the memory begins at a multiple of its elements' size, as the kernels assume.
bool is_aligned(const Tensor& tensor) {
  const size_t itemsize = dimorder_itemsize(static_cast<int>(tensor.dtype));
  return itemsize == 0 || reinterpret_cast<uintptr_t>(tensor.data) % itemsize == 0;
}

struct Freed {
  void operator()(uint8_t* bytes) const { std::free(bytes); }
};
using Memory = std::unique_ptr<uint8_t[], Freed>;

/// Memory for so many bytes, all of them 0: a program of another tool may count on that for its state.
/// The system gives pages as they are written, so a damaged size takes no memory.
Memory zeros(size_t bytes) {
  if (!is_size(bytes)) return nullptr;
  return Memory(static_cast<uint8_t*>(std::calloc(bytes + kReadBeyond, 1)));
}

/// An input as ExecuTorch gets it, in the sizes of the latest call that was accepted.
struct Fed {
  dimorder_tensor promised = {};
  int held[DIMORDER_MAX_RANK] = {}; // the order of its memory, over the logical dimensions
  int64_t sizes[DIMORDER_MAX_RANK] = {};
  int64_t strides[DIMORDER_MAX_RANK] = {};
  TensorImpl::SizesType own_sizes[DIMORDER_MAX_RANK] = {};
  TensorImpl::DimOrderType own_order[DIMORDER_MAX_RANK] = {};
  TensorImpl::StridesType own_strides[DIMORDER_MAX_RANK] = {};
  std::optional<TensorImpl> tensor; // none before the first call
  void* data = nullptr;
  Scratch converted;

  /// Whether a tensor lies to the letter as the program reads it, in the sizes of the latest call.
  bool is_as_before(const Tensor& given) const {
    const size_t bytes = static_cast<size_t>(promised.rank) * sizeof(int64_t);
    return tensor.has_value() && given.data != nullptr && is_aligned(given) && static_cast<int>(given.dtype) == promised.dtype &&
        given.rank == promised.rank && std::memcmp(given.sizes, sizes, bytes) == 0 &&
        std::memcmp(given.strides, strides, bytes) == 0;
  }

  void take_sizes(const int64_t* given) {
    std::copy_n(given, promised.rank, sizes);
    dimorder_strides(held, promised.rank, sizes, strides);
    for (int i = 0; i < promised.rank; i++) {
      const int dim = promised.is_physical ? promised.order[i] : i;
      own_sizes[i] = static_cast<TensorImpl::SizesType>(sizes[dim]);
      own_strides[i] = static_cast<TensorImpl::StridesType>(strides[dim]);
      own_order[i] = static_cast<TensorImpl::DimOrderType>(promised.is_physical ? i : held[i]);
    }
    tensor.emplace(
        static_cast<ScalarType>(promised.dtype), promised.rank, own_sizes, nullptr, own_order, own_strides);
  }
};

/// A method with the memory that it needs.
struct Loaded {
  MallocMemoryAllocator method_memory;
  MallocMemoryAllocator temporary;
  std::vector<Memory> planned;
  std::vector<Span<uint8_t>> spans;
  std::vector<Memory> outputs; // of those that are not planned
  std::vector<Span<uint8_t>> output_spans;
  std::optional<et::HierarchicalAllocator> hierarchy;
  std::optional<et::MemoryManager> manager;
  std::optional<et::Method> method;

  Error load(const et::Program& program, const char* name, bool weights_cache) {
    const auto meta = program.method_meta(name);
    if (!meta.ok()) return meta.error();
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) {
      const auto bytes = meta->memory_planned_buffer_size(i);
      if (!bytes.ok()) return bytes.error();
      planned.push_back(zeros(static_cast<size_t>(*bytes)));
      if (planned.back() == nullptr) return Error::MemoryAllocationFailed;
      spans.emplace_back(planned.back().get(), static_cast<size_t>(*bytes));
    }
    hierarchy.emplace(Span<Span<uint8_t>>(spans.data(), spans.size()));
    manager.emplace(&method_memory, &*hierarchy, &temporary);
    et::BackendOptions<1> xnnpack;
    et::LoadBackendOptionsMap options;
    Error error = xnnpack.set_option("weight_cache_enabled", weights_cache);
    if (error == Error::Ok) error = options.set_options("XnnpackBackend", xnnpack.view());
    if (error != Error::Ok) return error;
    auto loaded = program.load_method(name, &*manager, nullptr, nullptr, &options);
    if (!loaded.ok()) return loaded.error();
    method.emplace(std::move(*loaded));
    return give_outputs_memory(*meta);
  }

  /// A program may be planned without memory for its outputs: then it is the caller's to give.
  Error give_outputs_memory(const et::MethodMeta& meta) {
    for (size_t i = 0; i < meta.num_outputs(); i++) {
      const auto tag = meta.output_tag(i);
      if (!tag.ok() || *tag != et::Tag::Tensor) continue;
      const auto info = meta.output_tensor_meta(i);
      if (!info.ok() || info->is_memory_planned()) continue;
      outputs.push_back(zeros(info->nbytes()));
      if (outputs.back() == nullptr) return Error::MemoryAllocationFailed;
      output_spans.emplace_back(outputs.back().get(), info->nbytes());
      const Error error = method->set_output_data_ptr(outputs.back().get(), info->nbytes(), i);
      if (error != Error::Ok) return error;
    }
    return Error::Ok;
  }

  /// The memory that outputs lie in, which then outlives the method.
  std::vector<Memory> take_memory() {
    std::vector<Memory> all = std::move(planned);
    std::move(outputs.begin(), outputs.end(), std::back_inserter(all));
    return all;
  }

  /// Whether an address lies in the memory of the method, which a call overwrites.
  bool holds(const void* data) const {
    const auto has = [&](const Span<uint8_t>& span) { return is_in(data, span.data(), span.size()); };
    return std::any_of(spans.begin(), spans.end(), has) ||
        std::any_of(output_spans.begin(), output_spans.end(), has);
  }
};

/// Whether a build or a device lacks something. By other errors the runtime or a backend refuses what it reads.
bool is_lack(Error error) {
  return error == Error::OperatorMissing || error == Error::NotFound || error == Error::MemoryAllocationFailed ||
      error == Error::OutOfResources || error == Error::DelegateMemoryAllocationFailed;
}

void warn_on_stderr(const char* message, void*) {
  std::fprintf(stderr, "dimorder: %s\n", message);
}

} // namespace

struct Program::State {
  Options options;
  std::string name;
  std::unique_ptr<et::DataLoader> loader;
  std::optional<et::Program> program;
  std::unique_ptr<Loaded> loaded;
  std::vector<Memory> before_reset; // memory that the latest outputs lie in, until the next call
  std::string lines;
  dimorder_contract contract = {};
  bool has_contract = false;
  std::vector<Fed> fed;
  std::vector<dimorder_tensor> promised_outputs;
  std::vector<Scratch> converted_outputs; // and copies of those that lie in an input or a constant
  std::vector<Tensor> results;
  Stats stats;
  std::vector<Conversion> conversions;
  char text[kMessageBytes] = {};
  dimorder_message message = {text, kMessageBytes, 0};

  Error fail(Error error, const char* where, const std::string& found, const char* fix) {
    dimorder_clear(&message);
    dimorder_puts(&message, where);
    dimorder_puts(&message, name.c_str());
    dimorder_put_found(&message);
    dimorder_puts(&message, found.c_str());
    dimorder_put_fix(&message);
    dimorder_puts(&message, fix);
    return error;
  }

  Error fail_without_memory(const char* where, size_t bytes, const char* fix) {
    return fail(Error::MemoryAllocationFailed, where, "no memory for " + std::to_string(bytes) + " bytes", fix);
  }

  Error damaged(const Finding& finding) {
    return fail(Error::InvalidProgram, "loading ", finding.found, finding.fix.c_str());
  }

  void close() {
    loaded.reset();
    fed.clear();
    promised_outputs.clear();
    contract = {};
    has_contract = false;
  }

  Error open();
  Error read_contract(const ProgramTables& tables);
  Error check_method(const ProgramTables& tables);
  Error refuse_methods(std::vector<std::string> methods);
  Error load_method();
  Error make_tensors();
  Error run(Span<const Tensor> inputs);
  Error check(Span<const Tensor> inputs);
  bool overwrites(const void* data) const;
  Error keep_output(Fed& input);
  Error convert_to(bool is_input, size_t index, const Tensor& from, const int* order, Scratch& memory, Tensor* to);
  Error treat_mismatch();
  Error copy_borrowed(Scratch& memory, Tensor* output);
  Error collect_outputs();
};

Error Program::State::open() {
  if (const Finding finding = check_file(*loader, options.check_seal)) return damaged(finding);
  auto opened = et::Program::load(loader.get(), et::Program::Verification::InternalConsistency);
  if (!opened.ok()) return damaged({std::string("ExecuTorch: ") + et::to_string(opened.error()), kAgain});
  program.emplace(std::move(*opened));
  ProgramTables tables;
  if (const std::string why = tables.open(*loader); !why.empty()) return damaged(inconsistent(why));
  Error error = read_contract(tables);
  if (error == Error::Ok) error = check_method(tables);
  if (error == Error::Ok) error = load_method();
  return error != Error::Ok ? error : make_tensors();
}

Error Program::State::read_contract(const ProgramTables& tables) {
  std::vector<std::string> methods;
  for (size_t i = 0; i < program->num_methods(); i++) {
    const auto method = program->get_method_name(i);
    if (method.ok()) methods.emplace_back(*method);
  }
  const auto has = [&](const char* name) { return std::find(methods.begin(), methods.end(), name) != methods.end(); };
  if (!has(kMethod)) return refuse_methods(std::move(methods));
  has_contract = has(DIMORDER_LINES_METHOD);
  if (!has_contract) {
    return has("dimorder_contract") ? damaged({"a contract without the lines that C++ reads", "lower it again with this dimorder"})
                    : Error::Ok;
  }
  const std::optional<std::string> text_of_contract = tables.constant_text(DIMORDER_LINES_METHOD);
  if (!text_of_contract.has_value()) return damaged({"a contract that cannot be read", kAgain});
  lines = *text_of_contract;
  return Error::Ok;
}

/// Refuse a method that would end the process, or give wrong numbers for any inputs.
Error Program::State::check_method(const ProgramTables& tables) {
  const std::optional<Plan> plan = tables.plan(kMethod);
  if (!plan.has_value()) return damaged(inconsistent("a method without a name"));
  std::vector<Misread> misread;
  if (const Finding finding = check_tables(tables, *plan, !has_contract, &misread)) return damaged(finding);
  const Finding finding = describe_misread(misread);
  return finding ? fail(Error::NotSupported, "loading ", finding.found, finding.fix.c_str()) : Error::Ok;
}

/// Refuse a program without the method that run() calls, and name the ones that it has.
Error Program::State::refuse_methods(std::vector<std::string> methods) {
  char names[kMessageBytes / 4];
  dimorder_message found = {names, sizeof names, 0};
  std::sort(methods.begin(), methods.end());
  dimorder_puts(&found, "the methods [");
  for (const std::string& method : methods) {
    if (&method != methods.data()) dimorder_puts(&found, ", ");
    dimorder_put_quoted(&found, {method.data(), method.size()});
  }
  dimorder_puts(&found, "]");
  return fail(Error::NotSupported, "loading ", names, "export a program with the method 'forward'");
}

Error Program::State::load_method() {
  if (loaded != nullptr && before_reset.empty()) before_reset = loaded->take_memory();
  loaded = std::make_unique<Loaded>();
  const Error error = loaded->load(*program, kMethod, options.weights_cache && has_contract);
  if (error == Error::Ok) return error;
  loaded.reset(); // half a method is not run
  const std::string found = std::string("ExecuTorch: ") + et::to_string(error);
  if (!is_lack(error)) {
    return damaged({found + ": a part that is damaged, or that is for another version or processor", kAgain});
  }
  return fail(
      error, "loading ", found,
      "see the line that ExecuTorch logged before: this build lacks an operator, a backend or memory");
}

Error Program::State::make_tensors() {
  if (!has_contract) {
    if (const Finding finding = write_foreign_contract(*loaded->method, &lines)) {
      return fail(Error::NotSupported, "loading ", finding.found, finding.fix.c_str());
    }
  }
  char reason[kMessageBytes];
  dimorder_message why = {reason, sizeof reason, 0};
  if (dimorder_parse_with(lines.data(), lines.size(), &contract, &why) != DIMORDER_OK) {
    const char* found = std::strstr(reason, "found: ") + std::strlen("found: ");
    const char* fix = std::strstr(found, "\n  fix: ");
    return damaged({std::string(found, fix) + " in its contract", fix + std::strlen("\n  fix: ")});
  }
  std::vector<dimorder_tensor> inputs;
  for (int i = 0; i < contract.inputs; i++) inputs.push_back(dimorder_input(&contract, i));
  for (int i = 0; i < contract.outputs; i++) promised_outputs.push_back(dimorder_output(&contract, i));
  if (has_contract) {
    const Finding finding = compare_with_program(loaded->method->method_meta(), contract, inputs, promised_outputs);
    if (finding) return damaged(finding);
  }
  fed.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    fed[i].promised = inputs[i];
    dimorder_memory_order(&inputs[i], fed[i].held);
  }
  conversions.reserve(inputs.size() + promised_outputs.size());
  converted_outputs.resize(promised_outputs.size());
  results.resize(promised_outputs.size());
  return Error::Ok;
}

Error Program::State::run(Span<const Tensor> inputs) {
  conversions.clear();
  bool is_as_before = inputs.size() == fed.size();
  for (size_t i = 0; is_as_before && i < fed.size(); i++) {
    fed[i].data = inputs[i].data;
    is_as_before = fed[i].is_as_before(inputs[i]);
  }
  if (!is_as_before) {
    const Error error = check(inputs);
    if (error != Error::Ok) return error;
  }
  Error error = Error::Ok;
  // All inputs before the first is set: setting one may overwrite the memory of another, if that is an output.
  for (size_t i = 0; error == Error::Ok && i < fed.size(); i++) error = keep_output(fed[i]);
  for (size_t i = 0; error == Error::Ok && i < fed.size(); i++) {
    fed[i].tensor->set_data(fed[i].data);
    error = loaded->method->set_input(et::EValue(::executorch::aten::Tensor(&*fed[i].tensor)), i);
  }
  if (error == Error::Ok) error = loaded->method->execute();
  if (error != Error::Ok) {
    return fail(
        error, "running ", std::string("ExecuTorch: ") + et::to_string(error),
        "see the line that ExecuTorch logged before; an operator in it refuses these tensors");
  }
  before_reset.clear();
  error = collect_outputs();
  if (error != Error::Ok) return error;
  stats.calls++; // a call that failed counts for nothing
  stats.conversions += conversions.size();
  for (const Conversion& conversion : conversions) stats.cost_bytes += conversion.cost_bytes;
  return Error::Ok;
}

/// Whether an address lies in memory that a call overwrites: every earlier output does.
bool Program::State::overwrites(const void* data) const {
  const auto has = [&](const Scratch& scratch) { return scratch.holds(data); };
  return loaded->holds(data) || std::any_of(converted_outputs.begin(), converted_outputs.end(), has);
}

/// Copy an input that is an output of the call before, whose memory this call overwrites.
Error Program::State::keep_output(Fed& input) {
  if (!overwrites(input.data)) return Error::Ok;
  const size_t bytes = input.tensor->nbytes();
  void* data = input.converted.of(bytes);
  if (data == nullptr) return Error::MemoryAllocationFailed;
  std::memcpy(data, input.data, bytes);
  input.data = data;
  return Error::Ok;
}

/// Check all inputs, and convert those that lie in another order.
Error Program::State::check(Span<const Tensor> inputs) {
  int64_t symbols[DIMORDER_MAX_SYMBOLS];
  std::fill_n(symbols, DIMORDER_MAX_SYMBOLS, int64_t{-1});
  if (dimorder_check_count(&contract, inputs.size(), &message) != DIMORDER_OK) return Error::InvalidArgument;
  for (size_t i = 0; i < fed.size(); i++) {
    const Tensor& given = inputs[i];
    if (given.rank < 0 || given.rank > DIMORDER_MAX_RANK) {
      dimorder_put_where(&message, "input", &fed[i].promised);
      dimorder_put_found(&message);
      if (given.rank < 0) dimorder_puts(&message, "sizes, strides or an order that do not belong together");
      else dimorder_put_int(&message, given.rank);
      dimorder_puts(&message, given.rank < 0 ? "" : " dimensions");
      dimorder_puts(&message, "\n  fix: pass a tensor of at most 16 dimensions, one stride or place in the order for each");
      return Error::InvalidArgument;
    }
    const dimorder_view view = {static_cast<int>(given.dtype), given.rank, given.sizes, given.strides};
    if (dimorder_check_kind(&contract, &fed[i].promised, &view, symbols, &message) != DIMORDER_OK) {
      return Error::InvalidArgument;
    }
    if (given.data == nullptr && given.numel() != 0) {
      dimorder_put_where(&message, "input", &fed[i].promised);
      dimorder_puts(&message, "\n  found: no memory (a null pointer)\n  fix: pass the address of its first element");
      return Error::InvalidArgument;
    }
    if (!is_aligned(given)) {
      dimorder_put_where(&message, "input", &fed[i].promised);
      dimorder_puts(&message, "\n  found: an address that is no multiple of the elements' size\n  fix: align its memory");
      return Error::InvalidArgument;
    }
  }
  // Of all inputs or of none: sizes of two calls together may be sizes that no call can have.
  for (size_t i = 0; i < fed.size(); i++) fed[i].take_sizes(inputs[i].sizes);
  for (size_t i = 0; i < fed.size(); i++) {
    const Tensor& given = inputs[i];
    const dimorder_view view = {static_cast<int>(given.dtype), given.rank, given.sizes, given.strides};
    fed[i].data = given.data;
    if (dimorder_check_order("input", &fed[i].promised, &view, &message) == DIMORDER_OK) continue;
    Error error = treat_mismatch();
    Tensor dense;
    if (error == Error::Ok) error = convert_to(true, i, given, fed[i].held, fed[i].converted, &dense);
    if (error != Error::Ok) return error;
    fed[i].data = dense.data;
  }
  return Error::Ok;
}

/// Refuse the tensor that the message is about, or warn of it.
Error Program::State::treat_mismatch() {
  if (options.on_mismatch == OnMismatch::kError) return Error::InvalidArgument;
  if (options.on_mismatch == OnMismatch::kWarn) {
    (options.warn == nullptr ? warn_on_stderr : options.warn)(text, options.context);
  }
  dimorder_clear(&message);
  return Error::Ok;
}

Error Program::State::convert_to(
    bool is_input, size_t index, const Tensor& from, const int* order, Scratch& memory, Tensor* to) {
  void* data = memory.of(from.nbytes());
  if (data == nullptr) {
    return fail_without_memory("converting a tensor for ", from.nbytes(), "pass it in the order of the contract");
  }
  *to = Tensor::in_order(data, from.dtype, from.sizes, order, from.rank);
  convert(from, *to);
  conversions.push_back({is_input, index, from.nbytes(), {}});
  const dimorder_view view = {static_cast<int>(from.dtype), from.rank, from.sizes, from.strides};
  dimorder_message found = {conversions.back().found, sizeof conversions.back().found, 0};
  dimorder_put_own_order(&found, &view);
  return Error::Ok;
}

/// Copy an output that lies in an input or a constant: a caller keeps it longer than those, and may pass it back.
Error Program::State::copy_borrowed(Scratch& memory, Tensor* output) {
  if (loaded->holds(output->data)) return Error::Ok;
  void* data = memory.of(output->nbytes());
  if (data == nullptr) return fail_without_memory("copying an output of ", output->nbytes(), "free some");
  if (output->numel() != 0) std::memcpy(data, output->data, output->nbytes());
  output->data = data;
  return Error::Ok;
}

Error Program::State::collect_outputs() {
  for (size_t i = 0; i < results.size(); i++) {
    const auto& value = loaded->method->get_output(i);
    if (!value.isTensor()) return fail(Error::InvalidState, "running ", "an output that is no tensor", kAgain);
    const dimorder_tensor& promised = promised_outputs[i];
    Tensor own = Tensor::of(value.toTensor());
    if (own.rank != promised.rank || static_cast<int>(own.dtype) != promised.dtype) {
      return fail(Error::InvalidState, "running ", "an output of another type or rank than promised", kAgain);
    }
    Tensor& result = results[i];
    result = own;
    for (int at = 0; promised.is_physical && at < own.rank; at++) {
      result.sizes[promised.order[at]] = own.sizes[at];
      result.strides[promised.order[at]] = own.strides[at];
    }
    const dimorder_view view = {promised.dtype, result.rank, result.sizes, result.strides};
    if (dimorder_check_order("output", &promised, &view, &message) == DIMORDER_OK) {
      const Error error = copy_borrowed(converted_outputs[i], &result);
      if (error != Error::Ok) return error;
      continue;
    }
    Error error = treat_mismatch();
    int held[DIMORDER_MAX_RANK];
    dimorder_memory_order(&promised, held);
    if (error == Error::Ok) error = convert_to(false, i, Tensor(result), held, converted_outputs[i], &result);
    if (error != Error::Ok) return error;
  }
  return Error::Ok;
}

Program::Program() = default;
Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

Error Program::open(const char* path, const Options& options) {
  std::unique_ptr<et::DataLoader> loader;
  et::runtime_init();
  std::FILE* file = std::fopen(path, "rb"); // whose errno says why a file cannot be read
  const std::string reason = file == nullptr ? std::strerror(errno) : "";
  if (file != nullptr) std::fclose(file);
  if (reason.empty() && options.loading == Loading::kMmap) {
    auto mapped = MmapDataLoader::from(path, MmapDataLoader::MlockConfig::NoMlock);
    if (mapped.ok()) loader = std::make_unique<MmapDataLoader>(std::move(*mapped));
  } else if (reason.empty()) {
    auto read = FileDataLoader::from(path);
    if (read.ok()) loader = std::make_unique<FileDataLoader>(std::move(*read));
  }
  if (loader != nullptr) return open(std::move(loader), path, options);
  state_ = std::make_unique<State>();
  state_->name = path;
  return state_->fail(
      Error::AccessFailed, "loading ", reason.empty() ? "a file that cannot be read" : reason,
      "give the path of a .pte file");
}

Error Program::open(std::unique_ptr<et::DataLoader> loader, const char* name, const Options& options) {
  et::runtime_init();
  state_ = std::make_unique<State>();
  state_->options = options;
  state_->name = name;
  state_->loader = std::move(loader);
  if (state_->loader == nullptr) {
    return state_->fail(Error::InvalidArgument, "loading ", "no loader (a null pointer)", "pass one");
  }
  const Error error = state_->open();
  if (error != Error::Ok) state_->close(); // a program that did not open is not run
  return error;
}

Result<Span<const Tensor>> Program::run(Span<const Tensor> inputs) {
  if (state_ == nullptr) {
    state_ = std::make_unique<State>();
    state_->name = "a program";
  }
  dimorder_clear(&state_->message);
  if (state_->loaded == nullptr) {
    return state_->fail(Error::InvalidState, "running ", "a program that is not open", "open it first");
  }
  const Error error = state_->run(inputs);
  if (error != Error::Ok) return error;
  return Span<const Tensor>(state_->results.data(), state_->results.size());
}

Result<Span<const Tensor>> Program::run(std::initializer_list<Tensor> inputs) {
  return run(Span<const Tensor>(inputs.begin(), inputs.size()));
}

Error Program::reset() {
  if (state_ == nullptr || state_->loaded == nullptr) return Error::InvalidState;
  dimorder_clear(&state_->message);
  // Another tool's file does not say whether it has state.
  const bool has_state = state_->contract.states != 0 || !state_->has_contract;
  return has_state ? state_->load_method() : Error::Ok;
}

const dimorder_contract& Program::contract() const {
  return state_->contract;
}

const dimorder_tensor& Program::input(size_t index) const {
  return state_->fed[index].promised;
}

const dimorder_tensor& Program::output(size_t index) const {
  return state_->promised_outputs[index];
}

size_t Program::inputs() const {
  return state_ == nullptr ? 0 : state_->fed.size();
}

size_t Program::outputs() const {
  return state_ == nullptr ? 0 : state_->promised_outputs.size();
}

bool Program::has_contract() const {
  return state_ != nullptr && state_->has_contract;
}

const Stats& Program::stats() const {
  static const Stats none;
  return state_ == nullptr ? none : state_->stats;
}

Span<const Conversion> Program::conversions() const {
  if (state_ == nullptr) return {};
  return {state_->conversions.data(), state_->conversions.size()};
}

const char* Program::message() const {
  return state_ == nullptr ? "" : state_->text;
}

} // namespace dimorder
