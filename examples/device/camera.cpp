// A camera's pictures through a network: rows of pixels, three bytes each, in the order in which cameras give them.
//
// The network may have been lowered for NCHW or NHWC: the program converts. The contract says what a pixel becomes:
// a float32, an int8 or uint8 with a scale, or a uint8 without one, which is the pixel itself.
#include <dimorder/program.h>

#include <cstdio>
#include <vector>

namespace {

/// One frame of a camera; here a gradient.
std::vector<uint8_t> frame(int64_t height, int64_t width) {
  std::vector<uint8_t> pixels;
  for (int64_t row = 0; row < height; row++) {
    for (int64_t column = 0; column < width; column++) {
      pixels.push_back(static_cast<uint8_t>(row * 255 / height));
      pixels.push_back(static_cast<uint8_t>(column * 255 / width));
      pixels.push_back(128);
    }
  }
  return pixels;
}

int fail(const dimorder::Program& program) {
  std::fprintf(stderr, "%s\n", program.message());
  return 1;
}

} // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: camera NETWORK.pte\n"), 2;
  dimorder::Program program;
  if (program.open(words[1]) != dimorder::Error::Ok) return fail(program);
  if (program.inputs() != 1 || program.input(0).rank != 4) return std::fprintf(stderr, "one picture, please\n"), 2;

  const dimorder_tensor& input = program.input(0);
  const int64_t height = input.sizes[2], width = input.sizes[3];
  const std::vector<uint8_t> pixels = frame(height, width);
  const auto dtype = static_cast<dimorder::ScalarType>(input.dtype);
  const bool is_byte = dtype == dimorder::ScalarType::Byte || dtype == dimorder::ScalarType::Char;
  std::vector<float> numbers; // what the network was trained on: from -1 to 1
  for (const uint8_t pixel : pixels) numbers.push_back(static_cast<float>(pixel) / 127.5f - 1.0f);
  std::vector<uint8_t> integers(pixels.size());
  const void* data = nullptr;
  if (dtype == dimorder::ScalarType::Float) {
    data = numbers.data();
  } else if (is_byte && dimorder_quantize(&input, numbers.data(), numbers.size(), integers.data()) == DIMORDER_OK) {
    data = integers.data(); // that stand for these numbers
  } else if (dtype == dimorder::ScalarType::Byte) {
    data = pixels.data();
  } else {
    return std::fprintf(stderr, "an input of float32, uint8, or int8 with a scale, please\n"), 2;
  }

  // The picture's logical sizes are N, C, H, W; its memory has rows of pixels: dimensions 0, 2, 3, 1.
  const auto picture = dimorder::Tensor::in_order(data, dtype, {1, 3, height, width}, {0, 2, 3, 1});
  const auto outputs = program.run({picture});
  if (!outputs.ok()) return fail(program);

  const dimorder::Tensor& scores = (*outputs)[0];
  std::printf("%zu numbers", scores.numel());
  if (scores.dtype == dimorder::ScalarType::Float) std::printf(", the first %g", static_cast<double>(*scores.data_as<float>()));
  std::printf("; %llu conversions of the input\n", static_cast<unsigned long long>(program.stats().conversions));
  return 0;
}
