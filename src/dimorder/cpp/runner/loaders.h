// Read a .pte so that constants which are used after ExecuTorch has freed them show themselves. For tests.
#pragma once

#include <executorch/runtime/core/data_loader.h>

#include <memory>

namespace dimorder::runner {

/// What becomes of memory that is freed. None of it is given back, so that no other use of it hides a late read.
enum class Freed {
  kPoisoned, ///< filled with NaN of float32 and float16, and with 127 and -1 of int8
  kUnreadable, ///< a read crashes
};

/// A loader that gives each load memory of its own; nullptr for a file that cannot be opened.
std::unique_ptr<::executorch::runtime::DataLoader> open_hostile(const char* path, Freed freed);

} // namespace dimorder::runner
