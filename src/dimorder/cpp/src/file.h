// What is known of a .pte before it is run: whether it is whole, and the contract that it amounts to.
#pragma once

#include "argument_checks.h"
#include "program_tables.h"

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

/// Refuse tables that contradict each other.
Finding inconsistent(const std::string& why);

/// Refuse a method whose calls or constants would end the process, or that lacks a constant. `misread` gets the calls
/// that give wrong numbers; those inside delegates only if another tool wrote the file.
Finding check_tables(
    const ProgramTables& program, const Plan& plan, bool is_foreign, std::vector<Misread>* misread);

/// Refuse a program with calls that give wrong numbers, which no guard at the inputs can repair.
Finding describe_misread(const std::vector<Misread>& calls);

/// Write the contract that the tensors of another tool's method amount to: ExecuTorch knows types, sizes and
/// orders. A size that is an upper bound becomes a dynamic size.
Finding write_foreign_contract(::executorch::runtime::Method& method, std::string* lines);

/// Refuse a contract whose tensors are not those of the program: it must not misdirect a call.
Finding compare_with_program(
    const ::executorch::runtime::MethodMeta& program, const dimorder_contract& contract,
    const std::vector<dimorder_tensor>& inputs, const std::vector<dimorder_tensor>& outputs);

} // namespace dimorder
