// Read numbers of every type, and write them for people and for JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dimorder::runner {

/// Element `index` of dense memory of a dimorder_dtype.
double element(const void* data, int dtype, size_t index);

/// Element `index` of dense memory of a dimorder_dtype that is not floating.
int64_t integer(const void* data, int dtype, size_t index);

/// Write numbers as elements of a floating type, each rounded to the nearest.
void store_floats(const float* from, size_t count, int dtype, void* to);

/// Six significant digits, as Python's format `.6g`.
std::string six_digits(double number);

/// The fewest digits that mean this number and no other. The number is finite.
std::string shortest(double number);

/// `1,234,567`
std::string with_commas(uint64_t number);

/// Whether the whole text is a finite number.
bool read_number(const std::string& text, double* number);

/// Whether the whole text is a list of finite numbers, as `0.5,0.25,1`.
bool read_numbers(const std::string& text, std::vector<float>* numbers);

/// Whether the whole text is an integer from 1 to `maximum`.
bool read_count(const std::string& text, int maximum, int* count);

} // namespace dimorder::runner
