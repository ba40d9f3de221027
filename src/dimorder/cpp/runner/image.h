// Read pictures: .ppm and .pgm, and .png where libpng was found.
#pragma once

#include "array.h"
#include "failure.h"

#include <string>

namespace dimorder::runner {

/// Rows of pixels, the channels of a pixel beside each other.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  int channels = 0; ///< 1 or 3
  Buffer pixels;
};

/// A picture, in grey or in red, green and blue. `where` names it in the failure.
Failure read_image(const std::string& where, const std::string& path, int channels, Image* image);

} // namespace dimorder::runner
