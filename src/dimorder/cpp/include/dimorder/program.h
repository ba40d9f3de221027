// Open a .pte, check or convert what it is given by its contract, and run it. C++17, no exceptions.
//
//     dimorder::Program net;
//     if (net.open("net.pte") != dimorder::Error::Ok) return fail(net.message());
//     auto outputs = net.run({dimorder::Tensor::in_order(pixels, ScalarType::Float, {1, 3, 224, 224}, {0, 2, 3, 1})});
//     if (!outputs.ok()) return fail(net.message());
//     const float* scores = (*outputs)[0].data_as<float>();
//
// A tensor in another order than the contract's is converted, refused or converted with a warning; never misread.
// message() has the three lines of the latest error: where, what was found, what to do. Verdicts and texts are
// those of dimorder's Python package.
#pragma once

#include <dimorder/contract.h>

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/result.h>
#include <executorch/runtime/core/span.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>

namespace dimorder {

using ::executorch::runtime::Error;
using ::executorch::runtime::Result;
using ::executorch::runtime::Span;
using ScalarType = ::executorch::aten::ScalarType;

/// Memory with a type, sizes and strides; it owns nothing. Strides are in elements, from dimension 0 on.
///
/// A rank of -1 says that the sizes, strides or order given to a function below do not belong together: such a
/// tensor is refused.
struct Tensor {
  void* data = nullptr;
  ScalarType dtype = ScalarType::Float;
  int rank = 0;
  int64_t sizes[DIMORDER_MAX_RANK] = {};
  int64_t strides[DIMORDER_MAX_RANK] = {};

  /// Row-major memory of these sizes.
  static Tensor dense(const void* data, ScalarType dtype, std::initializer_list<int64_t> sizes);
  static Tensor dense(const void* data, ScalarType dtype, const int64_t* sizes, int rank);

  /// Dense memory whose dimensions lie in this order, slowest first: a camera's picture of the logical sizes
  /// {1, 3, height, width} lies in {0, 2, 3, 1}.
  static Tensor in_order(
      const void* data, ScalarType dtype, std::initializer_list<int64_t> sizes, std::initializer_list<int> order);
  static Tensor in_order(const void* data, ScalarType dtype, const int64_t* sizes, const int* order, int rank);

  /// Any view: a crop, a slice, every second row.
  static Tensor strided(
      const void* data, ScalarType dtype, std::initializer_list<int64_t> sizes,
      std::initializer_list<int64_t> strides);

  /// A tensor of ExecuTorch, in the dim order that it says of itself.
  static Tensor of(const ::executorch::aten::Tensor& tensor);

  /// How many elements there are, and how many bytes they take; SIZE_MAX where that is more.
  size_t numel() const;
  size_t nbytes() const;

  template <typename T>
  const T* data_as() const {
    return static_cast<const T*>(data);
  }
};

/// What becomes of a tensor in another order than promised. One of another type or other sizes is always refused.
enum class OnMismatch {
  kAdapt, ///< converted, and counted
  kError, ///< refused
  kWarn, ///< converted, counted, and told to Options::warn
};

/// How a file is read. The pages of a mapped file are shared and can be dropped; a read file is a copy.
enum class Loading { kMmap, kFile };

struct Options {
  OnMismatch on_mismatch = OnMismatch::kAdapt;
  Loading loading = Loading::kMmap;
  /// Compare the file with the checksum in it: reads all of it once.
  bool check_seal = false;
  /// Pack a weight that several operators read once: less memory for recurrent networks. Of another tool's file it
  /// stays off, for ExecuTorch 1.5.1 then frees constants that XNNPACK still reads.
  bool weights_cache = false;
  /// Gets the three lines of each warning; nullptr writes them to stderr.
  void (*warn)(const char* message, void* context) = nullptr;
  void* context = nullptr;
};

/// What the guard has done since the program was opened.
struct Stats {
  uint64_t calls = 0;
  uint64_t conversions = 0;
  uint64_t cost_bytes = 0; ///< of all tensors that were converted
};

/// A tensor that lay in another order than promised, and was converted.
struct Conversion {
  bool is_input = true;
  size_t index = 0; ///< of the input or output
  size_t cost_bytes = 0;
  char found[160] = {}; ///< the order that it lay in, or why it was not dense
};

/// A program and its state. Called by one thread at a time; two programs share nothing.
class Program {
 public:
  Program();
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  /// Open a .pte and read its contract, or, of another tool's file, what its own tensor table amounts to.
  ///
  /// Error::AccessFailed where there is no such file, InvalidProgram for one that is damaged or whose contract is
  /// not that of its tensors, NotSupported for one without a method `forward` or with kernels that are known to give
  /// wrong numbers, OperatorMissing or NotFound for an operator or a backend that is not linked; else what
  /// ExecuTorch says.
  Error open(const char* path, const Options& options = {});

  /// The same from any loader, which the program owns; `name` stands in messages.
  Error open(
      std::unique_ptr<::executorch::runtime::DataLoader> loader, const char* name, const Options& options = {});

  /// Run once. The outputs have the logical sizes and the order of the contract; their memory is the program's,
  /// and the next call overwrites it.
  ///
  /// An output may be an input of the next call: it is copied first.
  ///
  /// Error::InvalidArgument for tensors that do not keep the contract. If all inputs are in order, nothing is
  /// allocated, and nothing is copied but what ExecuTorch copies, and outputs that lie in an input or a constant.
  Result<Span<const Tensor>> run(Span<const Tensor> inputs);
  Result<Span<const Tensor>> run(std::initializer_list<Tensor> inputs);

  /// Bring the state back to what it is in the file. A program of dimorder's without state is left as it is.
  ///
  /// The latest outputs stay valid until the next call, and may be its inputs. Until then a program with state has
  /// its planned memory twice.
  Error reset();

  /// What is promised. Valid as long as the program is open.
  const dimorder_contract& contract() const;
  const dimorder_tensor& input(size_t index) const;
  const dimorder_tensor& output(size_t index) const;
  size_t inputs() const;
  size_t outputs() const;
  /// Whether dimorder wrote the file: else the contract is what ExecuTorch's tensor table says.
  bool has_contract() const;

  const Stats& stats() const;
  /// What the latest call converted.
  Span<const Conversion> conversions() const;
  /// The three lines of the latest error; empty after what went well.
  const char* message() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Copy a tensor's elements into other strides: by SIMD where both are dense and that is a transposition.
///
/// Both have the same type and sizes and do not overlap.
void convert(const Tensor& from, const Tensor& to);

} // namespace dimorder
