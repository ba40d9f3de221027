// Read a program's inputs from files: arrays, pictures and bytes.
#pragma once

#include "array.h"
#include "failure.h"
#include "settings.h"

#include <string>
#include <vector>

namespace dimorder::runner {

/// Which file is for which name: those with a name first, the others in order. A name without a file gets "".
///
/// `kind` is "input" or "output"; `is_complete` refuses a name that is left without a file.
Failure assign_files(
    const std::string& option, const std::string& kind, const std::vector<std::string>& names,
    const std::vector<std::string>& texts, bool is_complete, std::vector<std::string>* files);

/// One array per input of the contract.
Failure read_inputs(const Program& program, const Settings& settings, std::vector<Array>* inputs);

} // namespace dimorder::runner
