// Read pictures: .ppm and .pgm, and .png where libpng was found.
#include "image.h"

#include "files.h"

#include <cstring>
#include <utility>

#ifdef DIMORDER_RUN_HAS_PNG
#include <csetjmp>
#include <cstdio>
#include <png.h>
#endif

namespace dimorder::runner {
namespace {

constexpr int64_t kMostPixels = 178956970; // Pillow's limit; as three channels of float64 they fit in 32 bits
constexpr char kFix[] = "give a .npy file, or save the picture again";

Failure check_pixel_count(const std::string& where, const Image& image) {
  if (image.height <= kMostPixels / image.width) return {};
  const std::string size = std::to_string(image.width) + "x" + std::to_string(image.height);
  return {where, "a picture of " + size + " pixels, more than 178,956,970", "give a .npy file"};
}

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
  if (Failure failure = check_pixel_count(where, *image)) return failure;
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
/// Reads a .png by libpng's older functions: its simplified ones apply a gamma, which Pillow ignores.
///
/// libpng leaves a function where it fails (setjmp), so that what is freed belongs to the object.
class PngReader {
 public:
  explicit PngReader(const Buffer& file) : file_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() {
    png_destroy_read_struct(&png_, &info_, nullptr);
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Read all before the pixels; false where that fails.
  bool read_head() {
    if (info_ == nullptr || setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, read);
    png_read_info(png_, info_);
    return true;
  }

  int64_t height() const {
    return png_get_image_height(png_, info_);
  }
  int64_t width() const {
    return png_get_image_width(png_, info_);
  }
  bool is_grey_of_16_bits() const {
    return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png_, info_) == 16;
  }

  /// Write three bytes for each pixel; false where that fails.
  bool read_pixels(uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_); // palettes, and less than 8 bits
    png_set_strip_16(png_); // the high byte, as Pillow takes it
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    const size_t row = static_cast<size_t>(width()) * 3;
    if (png_get_rowbytes(png_, info_) != row) png_error(png_, "pixels of an unknown kind");
    for (int pass = 0; pass < passes; pass++) {
      for (size_t y = 0; y < static_cast<size_t>(height()); y++) png_read_row(png_, pixels + y * row, nullptr);
    }
    return true;
  }

  std::string reason() const {
    return file_.size() == 0 ? "no bytes at all" : reason_;
  }

 private:
  static void fail(png_structp png, png_const_charp reason) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->reason_, sizeof self->reason_, "%s", reason);
    png_longjmp(png, 1);
  }

  static void ignore(png_structp, png_const_charp) {}

  static void read(png_structp png, png_bytep to, size_t bytes) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (bytes > self->file_.size() - self->at_) png_error(png, "it is cut off");
    std::memcpy(to, self->file_.data() + self->at_, bytes);
    self->at_ += bytes;
  }

  const Buffer& file_;
  size_t at_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char reason_[128] = "libpng has no memory";
};

Failure read_png(const std::string& where, const std::string& path, Image* image) {
  Buffer file;
  if (Failure failure = read_file(where, path, kFix, &file)) return failure;
  PngReader png(file);
  if (!png.read_head()) return {where, "no .png: " + png.reason(), kFix};
  if (png.is_grey_of_16_bits()) {
    return {where, "a picture of 16 bits of grey, of which nobody knows the range",
            "save it with 8 bits, or give a .npy file"};
  }
  image->width = png.width();
  image->height = png.height();
  image->channels = 3;
  if (Failure failure = check_pixel_count(where, *image)) return failure;
  if (!image->pixels.resize(static_cast<size_t>(image->width * image->height) * 3)) {
    return {where, "a picture that no memory holds", kFix, kNo};
  }
  if (!png.read_pixels(image->pixels.data())) return {where, "a damaged .png: " + png.reason(), kFix};
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
