// What is known of a .pte before it is run: whether it is whole, and the contract that it amounts to.
#pragma once

#include <dimorder/contract.h>

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/executor/method.h>

#include <string>
#include <vector>

namespace dimorder {

inline constexpr char kAgain[] = "lower the program again, or copy the file again";

/// What is wrong, and what to do; both empty where nothing is.
struct Finding {
  std::string found;
  std::string fix;

  explicit operator bool() const {
    return !found.empty();
  }
};

/// Refuse what can be told to be damaged without the runtime: the head, the length, and, if asked, the checksum.
Finding check_file(const ::executorch::runtime::DataLoader& loader, bool with_seal);

/// Refuse segments without a header that says where they begin: ExecuTorch would read them from the file's start.
/// The runtime must have verified the file's tables.
Finding check_segments(const ::executorch::runtime::DataLoader& loader);

/// Write the contract that the tensors of another tool's method amount to: ExecuTorch knows types, sizes and
/// orders. A size that is an upper bound becomes a dynamic size.
Finding write_foreign_contract(::executorch::runtime::Method& method, std::string* lines);

/// Refuse a contract whose tensors are not those of the program: it must not misdirect a call.
Finding compare_with_program(
    const ::executorch::runtime::MethodMeta& program, const dimorder_contract& contract,
    const std::vector<dimorder_tensor>& inputs, const std::vector<dimorder_tensor>& outputs);

} // namespace dimorder
