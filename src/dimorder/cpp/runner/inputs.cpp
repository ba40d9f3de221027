// Read a program's inputs from files: arrays as they lie there, pictures channels-last, bytes as the contract has it.
#include "inputs.h"

#include "contract_text.h"
#include "files.h"
#include "image.h"
#include "npy.h"
#include "numbers.h"

#include <algorithm>
#include <utility>

namespace dimorder::runner {
namespace {

bool is_array(const std::string& file) {
  return ends_with(file, ".npy") || ends_with(file, ".npz");
}

bool is_raw(const std::string& file) {
  return ends_with(file, ".raw") || ends_with(file, ".bin");
}

bool is_picture(const std::string& file) {
  return ends_with(file, ".ppm") || ends_with(file, ".pgm") || ends_with(file, ".png");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Make bfloat16 of float32, for which it stands in numpy. Strides stay as they are.
void take_as_promised(const dimorder_tensor& promised, Array* array) {
  Tensor& tensor = array->tensor;
  if (promised.dtype != DIMORDER_BFLOAT16 || tensor.dtype != ScalarType::Float) return;
  auto* data = array->memory.data(); // written behind where it is read
  for (size_t i = 0; i < tensor.numel(); i++) {
    const auto value = static_cast<float>(element(data, DIMORDER_FLOAT32, i));
    store_floats(&value, 1, DIMORDER_BFLOAT16, data + i * 2);
  }
  tensor.dtype = ScalarType::BFloat16;
}

Failure read_raw(const std::string& where, const std::string& path, const dimorder_tensor& promised, Array* array) {
  size_t wanted = dimorder_itemsize(promised.dtype);
  for (int i = 0; i < promised.rank; i++) {
    if (promised.sizes[i] < 0) {
      return {where, "bytes without a shape, for an input of dynamic size", "give a .npy file, which has a shape"};
    }
    wanted *= static_cast<size_t>(promised.sizes[i]);
  }
  constexpr char kFix[] = "give the path of a .npy, .raw or .bin file";
  if (Failure failure = read_file(where, path, kFix, &array->memory)) return failure;
  const size_t size = array->memory.size();
  if (size != wanted) {
    const std::string found = std::to_string(size) + " bytes, where the input has " + std::to_string(wanted);
    return {where, found, "write it dense, as " + type_of(promised) + " in the order " + order_of(promised)};
  }
  uint8_t* data = array->memory.data();
  for (size_t i = 0; promised.dtype == DIMORDER_BOOL && i < wanted; i++) data[i] = data[i] != 0;
  array->tensor = Tensor::in_order(
      data, static_cast<ScalarType>(promised.dtype), promised.sizes, promised.order, promised.rank);
  return {};
}

/// A mean or a standard deviation for each channel.
Failure per_channel(const std::vector<float>& given, float otherwise, int channels, std::vector<float>* values) {
  const auto count = static_cast<size_t>(channels);
  *values = given.empty() ? std::vector<float>{otherwise} : given;
  if (values->size() == 1) values->resize(count, values->front());
  if (values->size() == count) return {};
  const std::string found = std::to_string(given.size()) + " values for " + std::to_string(channels) + " channels";
  return {"--mean and --std", found, "give one, or one each"};
}

/// Write pixels as numbers of the promised type, or as the integers that stand for these.
Failure normalise(const Image& image, const dimorder_tensor& promised, const Settings& settings, void* to) {
  std::vector<float> mean, deviation;
  if (Failure failure = per_channel(settings.mean, 0, image.channels, &mean)) return failure;
  if (Failure failure = per_channel(settings.std, 1, image.channels, &deviation)) return failure;
  const auto channels = static_cast<size_t>(image.channels);
  const size_t row = static_cast<size_t>(image.width) * channels, itemsize = dimorder_itemsize(promised.dtype);
  std::vector<float> line(row);
  for (size_t y = 0; y < static_cast<size_t>(image.height); y++) {
    const uint8_t* pixels = image.pixels.data() + y * row;
    for (size_t x = 0; x < row; x++) {
      const size_t channel = x % channels;
      line[x] = (static_cast<float>(pixels[x]) / 255.0f - mean[channel]) / deviation[channel];
    }
    char* at = static_cast<char*>(to) + y * row * itemsize;
    if (promised.is_scaled != 0) dimorder_quantize(&promised, line.data(), row, at);
    else store_floats(line.data(), row, promised.dtype, at);
  }
  return {};
}

Failure check_picture_size(const std::string& where, const Image& image, const dimorder_tensor& promised) {
  const int64_t height = promised.sizes[2] < 0 ? image.height : promised.sizes[2];
  const int64_t width = promised.sizes[3] < 0 ? image.width : promised.sizes[3];
  if (image.height == height && image.width == width) return {};
  const std::string wanted = std::to_string(width) + "x" + std::to_string(height);
  const std::string found = std::to_string(image.width) + "x" + std::to_string(image.height);
  return {where, "a picture of " + found + " pixels, where input '" + name_of(promised) + "' takes " + wanted,
          "resize it, as by: magick " + where.substr(where.find(' ') + 1) + " -resize '" + wanted + "!' resized.ppm"};
}

Failure read_picture(
    const std::string& where, const std::string& path, const dimorder_tensor& promised, const Settings& settings,
    const std::string& shape, Array* array) {
  if (promised.rank != 4 || promised.sizes[0] != 1 || (promised.sizes[1] != 1 && promised.sizes[1] != 3)) {
    return {where, "an image, for input '" + name_of(promised) + "' of shape " + shape,
            "give a .npy file; an image fits 1 x 3 x H x W and 1 x 1 x H x W"};
  }
  Image image;
  const auto channels = static_cast<int>(promised.sizes[1]);
  if (Failure failure = read_image(where, path, channels, &image)) return failure;
  if (Failure failure = check_picture_size(where, image, promised)) return failure;
  const bool is_normalised = !settings.mean.empty() || !settings.std.empty();
  const bool is_floating = dimorder_is_floating(promised.dtype) != 0;
  const int64_t sizes[] = {1, channels, image.height, image.width};
  const int order[] = {0, 2, 3, 1};
  const auto dtype = static_cast<ScalarType>(promised.dtype);
  if (!is_floating && !(promised.is_scaled != 0 && is_normalised)) {
    if (is_normalised || promised.dtype != DIMORDER_UINT8) {
      return {where, "an image, for an input of " + std::string(dimorder_dtype_name(promised.dtype)),
              "give a .npy file, or raw pixels for uint8"};
    }
    array->memory = std::move(image.pixels);
  } else {
    const auto count = static_cast<size_t>(image.height * image.width * channels);
    if (!array->memory.resize(count * dimorder_itemsize(promised.dtype))) {
      return {where, "no memory for its pixels", "give a smaller picture", kNo};
    }
    if (Failure failure = normalise(image, promised, settings, array->memory.data())) return failure;
  }
  array->tensor = Tensor::in_order(array->memory.data(), dtype, sizes, order, 4);
  return {};
}

Failure read_input(
    const std::string& file, const Program& program, size_t index, const Settings& settings, Array* array) {
  const std::string where = "--input " + file;
  const dimorder_tensor& promised = program.input(index);
  if (ends_with(file, ".npz")) return {where, "a .npz archive", "give one .npy file per input, as NAME=FILE"};
  if (is_array(file)) {
    if (Failure failure = read_npy(where, file, array)) return failure;
    take_as_promised(promised, array);
    return {};
  }
  if (is_raw(file)) return read_raw(where, file, promised, array);
  if (is_picture(file)) {
    return read_picture(where, file, promised, settings, promised_shape(program, promised), array);
  }
  return {where, "no .npy, .ppm, .pgm, .png, .raw or .bin",
          "give one of these; another picture becomes one by: magick photo.jpg photo.ppm"};
}

} // namespace

Failure assign_files(
    const std::string& option, const std::string& kind, const std::vector<std::string>& names,
    const std::vector<std::string>& texts, bool is_complete, std::vector<std::string>* files) {
  std::vector<std::string> unnamed;
  files->assign(names.size(), "");
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || exists(text)) {
      unnamed.push_back(text);
      continue;
    }
    const std::string name = text.substr(0, equals);
    const auto place = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (place == names.size() || !(*files)[place].empty()) {
      const std::string known = names.empty() ? "none" : joined(names);
      return {option + " " + text, "'" + name + "' " + (place == names.size() ? "is no " + kind : "twice"),
              "the " + kind + "s are " + known + "; give each once"};
    }
    if (equals + 1 == text.size()) return {option + " " + text, "no file", "give " + option + " NAME=FILE"};
    (*files)[place] = text.substr(equals + 1);
  }
  size_t left = 0;
  for (const std::string& file : *files) left += file.empty() ? 1 : 0;
  if (unnamed.size() != left && (is_complete || !unnamed.empty())) {
    const std::string file = is_complete ? " FILE (a picture or .npy)" : " FILE (a .npy)";
    return {option, std::to_string(texts.size()) + " for " + std::to_string(names.size()) + " " + kind + "s",
            names.empty() ? "leave " + option + " out" : "give " + option + file + " for each of " + joined(names)};
  }
  size_t next = 0;
  for (std::string& file : *files) {
    if (file.empty() && next < unnamed.size()) file = unnamed[next++];
  }
  return {};
}

Failure read_inputs(const Program& program, const Settings& settings, std::vector<Array>* inputs) {
  std::vector<std::string> names, files;
  for (size_t i = 0; i < program.inputs(); i++) names.push_back(name_of(program.input(i)));
  if (Failure failure = assign_files("--input", "input", names, settings.inputs, true, &files)) return failure;
  const bool has_picture = std::any_of(files.begin(), files.end(), is_picture);
  if (!has_picture && (!settings.mean.empty() || !settings.std.empty())) {
    return {"--mean and --std", "inputs that are no images", "leave them out"};
  }
  inputs->resize(files.size());
  for (size_t i = 0; i < files.size(); i++) {
    if (Failure failure = read_input(files[i], program, i, settings, &(*inputs)[i])) return failure;
  }
  return {};
}

} // namespace dimorder::runner
