// Read and write arrays of numpy: .npy files of the versions 1.0 to 3.0.
#pragma once

#include "array.h"
#include "failure.h"
#include "files.h"

#include <string>

namespace dimorder::runner {

/// The array of a .npy, as it lies there: Fortran order becomes strides. `where` names it in the failure.
Failure read_npy(const std::string& where, const std::string& path, Array* array);

/// A .npy of a dense, row-major tensor. numpy has no bfloat16: that becomes float32.
Failure encode_npy(const std::string& path, const Tensor& tensor, NewFile* file);

} // namespace dimorder::runner
