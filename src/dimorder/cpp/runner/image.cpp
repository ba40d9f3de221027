// Read pictures: .ppm and .pgm, and .png where libpng was found.
#include "image.h"

#include "files.h"

#include <cstring>
#include <utility>

#ifdef DIMORDER_RUN_HAS_PNG
#include <png.h>
#endif

namespace dimorder::runner {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 31;
constexpr char kFix[] = "give a .npy file, or save the picture again";

/// Reads the words of a .ppm's head, between which are blanks and comments.
class PpmHead {
 public:
  explicit PpmHead(const Buffer& file) : file_(file) {}

  /// A number from 1 on; 0 where there is none.
  int64_t number() {
    const auto* data = reinterpret_cast<const char*>(file_.data());
    while (at < file_.size() && (is_blank(data[at]) || data[at] == '#')) {
      const bool is_comment = data[at] == '#';
      while (is_comment && at < file_.size() && data[at] != '\n') at++;
      if (at < file_.size()) at++;
    }
    const size_t begin = at;
    while (at < file_.size() && data[at] >= '0' && data[at] <= '9') at++;
    int64_t found = 0;
    return dimorder_number({data + begin, at - begin}, 1, INT32_MAX, &found) != 0 ? found : 0;
  }

  bool blank() {
    return at < file_.size() && is_blank(static_cast<char>(file_.data()[at++]));
  }

  size_t at = 2; // behind P5 or P6

 private:
  static bool is_blank(char character) {
    return character == ' ' || (character >= '\t' && character <= '\r');
  }

  const Buffer& file_;
};

Failure read_ppm(const std::string& where, const std::string& path, Image* image) {
  Buffer file;
  if (Failure failure = read_file(where, path, kFix, &file)) return failure;
  const auto* data = file.data();
  if (file.size() < 2 || data[0] != 'P' || (data[1] != '5' && data[1] != '6')) {
    return {where, "no picture that begins with P5 or P6", "save it as a binary .ppm or .pgm, or give a .npy file"};
  }
  PpmHead head(file);
  image->channels = data[1] == '6' ? 3 : 1;
  image->width = head.number();
  image->height = head.number();
  const int64_t most = head.number();
  if (image->width == 0 || image->height == 0 || most == 0 || !head.blank()) {
    return {where, "a picture whose head is damaged", kFix};
  }
  if (most != 255) {
    return {where, "a picture of values up to " + std::to_string(most), "save it with values up to 255"};
  }
  if (image->height > kMostPixels / image->width) return {where, "a picture that no memory holds", kFix};
  const size_t bytes = static_cast<size_t>(image->width * image->height * image->channels);
  if (file.size() - head.at < bytes) {
    const std::string found = std::to_string(file.size() - head.at) + " bytes of pixels of " + std::to_string(bytes);
    return {where, found + ": it is cut off", kFix};
  }
  std::memmove(file.data(), file.data() + head.at, bytes);
  image->pixels = std::move(file);
  return {};
}

#ifdef DIMORDER_RUN_HAS_PNG
Failure read_png(const std::string& where, const std::string& path, Image* image) {
  Buffer file;
  if (Failure failure = read_file(where, path, kFix, &file)) return failure;
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  if (file.size() == 0 || png_image_begin_read_from_memory(&png, file.data(), file.size()) == 0) {
    return {where, std::string("no .png: ") + (file.size() == 0 ? "no bytes at all" : png.message), kFix};
  }
  png.format = PNG_FORMAT_RGBA; // with alpha, which is then dropped: libpng would mix it with a background
  image->width = png.width;
  image->height = png.height;
  image->channels = 3;
  const int64_t count = image->width * image->height;
  if (count > kMostPixels || !image->pixels.resize(static_cast<size_t>(count) * 4)) {
    png_image_free(&png);
    return {where, "a picture that no memory holds", kFix, kNo};
  }
  uint8_t* pixels = image->pixels.data();
  if (png_image_finish_read(&png, nullptr, pixels, 0, nullptr) == 0) {
    return {where, std::string("a damaged .png: ") + png.message, kFix};
  }
  for (int64_t i = 0; i < count; i++) std::memmove(pixels + i * 3, pixels + i * 4, 3);
  return {};
}
#else
Failure read_png(const std::string& where, const std::string&, Image*) {
  return {where, "a .png, where this program was built without libpng", "give a .ppm or a .npy file"};
}
#endif

/// Grey from colours, as Pillow computes it; colours from grey.
Failure change_channels(const std::string& where, int channels, Image* image) {
  if (image->channels == channels) return {};
  const auto count = static_cast<size_t>(image->width * image->height);
  if (!image->pixels.resize(count * 3)) return {where, "a picture that no memory holds", kFix, kNo};
  uint8_t* data = image->pixels.data();
  if (channels == 1) {
    for (size_t i = 0; i < count; i++) {
      const uint8_t* pixel = data + i * 3;
      const unsigned sum = pixel[0] * 19595u + pixel[1] * 38470u + pixel[2] * 7471u + 0x8000u;
      data[i] = static_cast<uint8_t>(sum >> 16);
    }
  } else {
    for (size_t i = count; i-- > 0;) std::memset(data + i * 3, data[i], 3);
  }
  image->channels = channels;
  return {};
}

} // namespace

Failure read_image(const std::string& where, const std::string& path, int channels, Image* image) {
  Failure failure = ends_with(path, ".png") ? read_png(where, path, image) : read_ppm(where, path, image);
  return failure ? failure : change_channels(where, channels, image);
}

} // namespace dimorder::runner
