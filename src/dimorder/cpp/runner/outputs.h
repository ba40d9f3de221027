// Keep a program's outputs, say what is in them, and write them.
#pragma once

#include "array.h"
#include "failure.h"
#include "settings.h"

#include <string>
#include <vector>

namespace dimorder::runner {

/// A value, and where it is.
struct Place {
  size_t index; ///< in row-major order
  double value;
};

/// What is in an output: the range and the mean of its finite values, and the largest of them.
struct Summary {
  size_t finite = 0;
  double minimum = 0, maximum = 0, mean = 0;
  std::vector<Place> largest; ///< at most 5; of equal values the first ones
};

/// Copy outputs, which the next call overwrites, into dense, row-major memory.
Failure copy_outputs(const Span<const Tensor>& outputs, std::vector<Array>* copies);

/// What is in a dense, row-major tensor.
Summary summarise(const Tensor& tensor);

/// The indices of an element, from dimension 0 on.
std::vector<int64_t> indices(const Tensor& tensor, size_t index);
std::string indices_text(const Tensor& tensor, size_t index);

/// Refuse a path that these outputs do not fit into, before anything runs. Without a program, what no outputs fit into.
Failure check_output(const Settings& settings, const Program* program);

/// Write the outputs as -o says.
Failure write_outputs(const Settings& settings, const Program& program, const std::vector<Array>& outputs);

} // namespace dimorder::runner
