// Check the calls in a method, which ExecuTorch takes on trust, as executorch/argument_checks.py does.
#pragma once

#include "program_tables.h"

#include <string>
#include <vector>

namespace dimorder {

/// Return why a call would end the process; "" if none would. Operators that no table has are left out.
std::string check_arguments(const Plan& plan);

/// Return why a constant reaches into the next one in the file; "" if none does.
std::string check_constant_sizes(const Plan& plan, const std::vector<int64_t>& sizes);

/// A call that gives wrong numbers: the kernel, and the orders of its tensors in words.
struct Misread {
  std::string kernel;
  int rank;
  std::string signature;
};

/// Return the calls of kernels that give wrong numbers for the orders of their tensors.
std::vector<Misread> misread_calls(const Plan& plan);

/// Return the orders of a signature in words, results last.
std::string orders_in_words(const Misread& call);

} // namespace dimorder
