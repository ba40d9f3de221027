// Choose what ExecuTorch logs and how many threads it has, and name its backends.
#pragma once

#include "failure.h"

#include <string>

namespace dimorder::runner {

/// Log errors alone, which say which operator failed, or everything.
void set_log(bool is_verbose);

/// Have so many threads. ExecuTorch has one pool of them for all programs of a process.
Failure set_threads(int count);

/// The backends that are linked, as `XnnpackBackend`.
std::string backend_names();

} // namespace dimorder::runner
