// Compare outputs with what they should be.
#pragma once

#include "array.h"
#include "failure.h"
#include "json.h"
#include "settings.h"

#include <string>
#include <vector>

namespace dimorder::runner {

/// What an output has to be.
struct Expectation {
  size_t output;
  std::string file;
  Array array;
};

/// How far an output is from what it has to be.
struct Difference {
  std::string name;
  double error = 0; ///< the largest, of finite values
  double magnitude = 0; ///< the largest that is expected
  double allowed = 0;
  std::string place; ///< of the largest error, as `[0, 3]`
  std::string why; ///< empty where the output is as expected
};

/// The expectations that --expect names; none for an output that it does not.
Failure read_expectations(const Program& program, const Settings& settings, std::vector<Expectation>* expectations);

Difference compare(
    const Program& program, const Settings& settings, const Expectation& expectation, const Tensor& output);

/// One line, as `expect  y  largest error 1e-07 at [0, 3], of 3.5; 0.00035 is allowed`.
std::string line_of(const Difference& difference);
void write_difference(JsonWriter& json, const Difference& difference);

} // namespace dimorder::runner
