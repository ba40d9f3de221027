// Tell what a run gave: as the text of Python's `dimorder run`, or as JSON.
#pragma once

#include "array.h"
#include "expect.h"
#include "settings.h"

#include <string>
#include <vector>

namespace dimorder::runner {

/// What a run gave.
struct Report {
  std::vector<Array> outputs;
  std::vector<Conversion> conversions; ///< of the call that gave these outputs
  std::vector<double> milliseconds; ///< of each timed call
  std::vector<Difference> differences;
};

std::string text_report(const Program& program, const Report& report);
std::string json_report(const Settings& settings, const Program& program, const Report& report);

/// The contract, and whether dimorder wrote it.
std::string text_contract(const Program& program);
std::string json_contract(const Settings& settings, const Program& program);

} // namespace dimorder::runner
