// Show a contract as Python does: as a table for people, and as JSON.
#pragma once

#include "json.h"

#include <dimorder/program.h>

#include <string>
#include <vector>

namespace dimorder::runner {

/// A word of the contract as it was before it was written.
std::string plain(dimorder_text word);

/// The name of an input or output.
std::string name_of(const dimorder_tensor& tensor);

/// `NHWC (0, 2, 3, 1)`
std::string order_of(const dimorder_tensor& tensor);

/// `int8, scale 0.021, zero point -3`
std::string type_of(const dimorder_tensor& tensor);

/// `1 x 3 x H x W`, or `scalar`: what is promised, or what a tensor has.
std::string promised_shape(const Program& program, const dimorder_tensor& tensor);
std::string shape_of(const Tensor& tensor);

/// The inputs, outputs, dynamic sizes and state of a program as a table.
std::string contract_table(const Program& program);

/// The keys of a tensor of the contract; its shape is that of `actual`, or the promised one.
void write_tensor(JsonWriter& json, const Program& program, const dimorder_tensor& tensor, const Tensor* actual);

/// The keys `inputs`, `outputs`, `symbols` and `state`.
void write_contract(JsonWriter& json, const Program& program);

} // namespace dimorder::runner
