// Read numbers of every type, and write them for people and for JSON.
#include "numbers.h"

#include <dimorder/program.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dimorder::runner {
namespace {

using Half = ::executorch::aten::Half;
using BFloat16 = ::executorch::aten::BFloat16;

template <typename T>
T read_as(const void* data, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

// On Arm, c10::Half is made of __fp16, into which a float is narrowed.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion" // Clang
#pragma GCC diagnostic ignored "-Wfloat-conversion" // GCC
template <typename T>
void store_as(const float* from, size_t count, void* to) {
  for (size_t i = 0; i < count; i++) {
    const T value = static_cast<T>(from[i]);
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
  }
}
#pragma GCC diagnostic pop

std::string formatted(const char* format, int digits, double number) {
  char text[40];
  const int length = std::snprintf(text, sizeof text, format, digits, number);
  return std::string(text, static_cast<size_t>(length));
}

} // namespace

int64_t integer(const void* data, int dtype, size_t index) {
  switch (dtype) {
    case DIMORDER_UINT8:
      return read_as<uint8_t>(data, index);
    case DIMORDER_BOOL:
      return read_as<uint8_t>(data, index) != 0;
    case DIMORDER_INT8:
      return read_as<int8_t>(data, index);
    case DIMORDER_INT16:
      return read_as<int16_t>(data, index);
    case DIMORDER_INT32:
      return read_as<int32_t>(data, index);
    default:
      return read_as<int64_t>(data, index);
  }
}

double element(const void* data, int dtype, size_t index) {
  if (dimorder_is_floating(dtype) == 0) return static_cast<double>(integer(data, dtype, index));
  switch (dtype) {
    case DIMORDER_FLOAT16:
      return static_cast<float>(Half(static_cast<const uint16_t*>(data)[index], Half::from_bits()));
    case DIMORDER_BFLOAT16:
      return static_cast<float>(BFloat16(static_cast<const uint16_t*>(data)[index], BFloat16::from_bits()));
    case DIMORDER_FLOAT64:
      return read_as<double>(data, index);
    default:
      return read_as<float>(data, index);
  }
}

void store_floats(const float* from, size_t count, int dtype, void* to) {
  if (dtype == DIMORDER_FLOAT16) store_as<Half>(from, count, to);
  else if (dtype == DIMORDER_BFLOAT16) store_as<BFloat16>(from, count, to);
  else if (dtype == DIMORDER_FLOAT64) store_as<double>(from, count, to);
  else store_as<float>(from, count, to);
}

std::string six_digits(double number) {
  return std::isnan(number) ? "nan" : formatted("%.*g", 6, number);
}

std::string shortest(double number) {
  std::string text;
  for (int digits = 1; digits <= 17; digits++) {
    text = formatted("%.*g", digits, number);
    if (std::strtod(text.c_str(), nullptr) == number) break;
  }
  return text;
}

std::string with_commas(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

bool read_number(const std::string& text, double* number) {
  char* end = nullptr;
  if (text.empty() || std::strchr(" \t\n\v\f\r", text[0]) != nullptr) return false;
  *number = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() && std::isfinite(*number);
}

bool read_numbers(const std::string& text, std::vector<float>* numbers) {
  numbers->clear();
  size_t at = 0;
  while (true) {
    const size_t comma = text.find(',', at);
    double number = 0;
    if (!read_number(text.substr(at, comma == std::string::npos ? comma : comma - at), &number)) return false;
    numbers->push_back(static_cast<float>(number));
    if (comma == std::string::npos) return true;
    at = comma + 1;
  }
}

bool read_count(const std::string& text, int maximum, int* count) {
  const dimorder_text word = {text.data(), text.size()};
  int64_t number = 0;
  if (!dimorder_number(word, 1, maximum, &number)) return false;
  *count = static_cast<int>(number);
  return true;
}

} // namespace dimorder::runner
