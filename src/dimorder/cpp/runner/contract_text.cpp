// Show a contract as Python does: as a table for people, and as JSON.
#include "contract_text.h"

#include "numbers.h"

#include <algorithm>

namespace dimorder::runner {
namespace {

/// What a function of contract.h writes.
template <typename Put>
std::string written(Put put) {
  char text[1024];
  dimorder_message message = {text, sizeof text, 0};
  text[0] = '\0';
  put(&message);
  return std::string(text, message.length);
}

/// The promised sizes: numbers, names of dynamic sizes, and what is computed from these.
std::vector<std::string> promised_sizes(const dimorder_contract& contract, const dimorder_tensor& tensor) {
  std::vector<std::string> sizes;
  dimorder_cursor cursor = {tensor.written.text, tensor.written.text + tensor.written.length};
  for (int i = 0; i < tensor.rank; i++) {
    const dimorder_text word = dimorder_next_word(&cursor);
    const int64_t size = tensor.sizes[i];
    if (size >= 0) sizes.push_back(std::to_string(size));
    else if (size == INT64_MIN) sizes.push_back(plain({word.text + 1, word.length - 1}));
    else sizes.push_back(plain(dimorder_dynamic_size(&contract, static_cast<int>(-1 - size)).name));
  }
  return sizes;
}

std::string joined(const std::vector<std::string>& sizes) {
  std::string text;
  for (const std::string& size : sizes) text += (text.empty() ? "" : " x ") + size;
  return text.empty() ? "scalar" : text;
}

/// A buffer that the program keeps.
struct StateLine {
  std::string name, dtype, order;
  std::vector<std::string> sizes;
};

StateLine state_at(const dimorder_contract& contract, int index) {
  dimorder_cursor cursor = dimorder_line(&contract, contract.inputs + contract.outputs + contract.symbols + index);
  StateLine state;
  int64_t rank = 0;
  state.name = plain(dimorder_next_word(&cursor));
  state.dtype = plain(dimorder_next_word(&cursor));
  dimorder_number(dimorder_next_word(&cursor), 0, DIMORDER_MAX_RANK, &rank);
  for (int64_t i = 0; i < rank; i++) state.sizes.push_back(plain(dimorder_next_word(&cursor)));
  state.order = plain(dimorder_next_word(&cursor));
  return state;
}

size_t characters(const std::string& text) {
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins));
}

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  std::string lines;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], characters(row[i]));
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); i++) {
      line += (i == 0 ? "" : "  ") + row[i] + std::string(widths[i] - characters(row[i]), ' ');
    }
    lines += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return lines;
}

Row tensor_row(const char* kind, const Program& program, const dimorder_tensor& tensor) {
  return {kind, name_of(tensor), promised_shape(program, tensor), type_of(tensor), order_of(tensor)};
}

std::string range_of(const dimorder_symbol& symbol) {
  std::string text = plain(symbol.name) + " = " + std::to_string(symbol.minimum) + " …";
  if (symbol.maximum >= 0) text += " " + std::to_string(symbol.maximum);
  if (symbol.step != 1) text += " in steps of " + std::to_string(symbol.step);
  return text;
}

/// A size is a number, or the name of one that is dynamic.
void write_sizes(JsonWriter& json, const std::vector<std::string>& sizes) {
  json.key("shape").begin('[');
  for (const std::string& size : sizes) {
    int64_t number = 0;
    const bool is_number = dimorder_number({size.data(), size.size()}, 0, INT64_MAX, &number) != 0;
    is_number ? json.integer(number) : json.text(size);
  }
  json.end(']');
}

void write_symbols(JsonWriter& json, const dimorder_contract& contract) {
  json.key("symbols").begin('[');
  for (int i = 0; i < contract.symbols; i++) {
    const dimorder_symbol symbol = dimorder_dynamic_size(&contract, i);
    json.begin('{');
    json.key("name").text(plain(symbol.name));
    json.key("minimum").integer(symbol.minimum);
    json.key("maximum");
    symbol.maximum < 0 ? json.null() : json.integer(symbol.maximum);
    if (symbol.step != 1) json.key("step").integer(symbol.step);
    json.end('}');
  }
  json.end(']');
}

void write_state(JsonWriter& json, const dimorder_contract& contract) {
  json.key("state").begin('[');
  for (int i = 0; i < contract.states; i++) {
    const StateLine state = state_at(contract, i);
    json.begin('{');
    json.key("name").text(state.name);
    write_sizes(json, state.sizes);
    json.key("dtype").text(state.dtype);
    json.key("order").text(state.order);
    json.end('}');
  }
  json.end(']');
}

} // namespace

std::string plain(dimorder_text word) {
  return written([&](dimorder_message* to) { dimorder_put_word(to, word); });
}

std::string name_of(const dimorder_tensor& tensor) {
  return plain(tensor.name);
}

std::string order_of(const dimorder_tensor& tensor) {
  return written([&](dimorder_message* to) { dimorder_put_order(to, tensor.order, tensor.rank); });
}

std::string type_of(const dimorder_tensor& tensor) {
  std::string text = dimorder_dtype_name(tensor.dtype);
  if (!tensor.is_scaled) return text;
  return text + ", scale " + plain(tensor.scale_short) + ", zero point " + std::to_string(tensor.zero_point);
}

std::string promised_shape(const Program& program, const dimorder_tensor& tensor) {
  return joined(promised_sizes(program.contract(), tensor));
}

std::string shape_of(const Tensor& tensor) {
  std::vector<std::string> sizes;
  for (int i = 0; i < tensor.rank; i++) sizes.push_back(std::to_string(tensor.sizes[i]));
  return joined(sizes);
}

std::string contract_table(const Program& program) {
  const dimorder_contract& contract = program.contract();
  std::vector<Row> rows;
  std::string sizes;
  for (size_t i = 0; i < program.inputs(); i++) rows.push_back(tensor_row("input", program, program.input(i)));
  for (size_t i = 0; i < program.outputs(); i++) rows.push_back(tensor_row("output", program, program.output(i)));
  for (int i = 0; i < contract.states; i++) {
    const StateLine state = state_at(contract, i);
    rows.push_back({"state", state.name, joined(state.sizes), state.dtype, state.order});
  }
  for (int i = 0; i < contract.symbols; i++) {
    sizes += "size    " + range_of(dimorder_dynamic_size(&contract, i)) + "\n";
  }
  return table(rows) + sizes;
}

void write_tensor(JsonWriter& json, const Program& program, const dimorder_tensor& tensor, const Tensor* actual) {
  std::vector<std::string> sizes = promised_sizes(program.contract(), tensor);
  std::string order = order_of(tensor);
  if (order[0] != '(') order.resize(order.find(' '));
  for (size_t i = 0; actual != nullptr && i < sizes.size(); i++) sizes[i] = std::to_string(actual->sizes[i]);
  json.key("name").text(name_of(tensor));
  write_sizes(json, sizes);
  json.key("dtype").text(dimorder_dtype_name(tensor.dtype));
  json.key("dim_order").begin('[');
  for (int i = 0; i < tensor.rank; i++) json.integer(tensor.order[i]);
  json.end(']');
  json.key("order").text(order);
  json.key("boundary").text(tensor.is_physical != 0 ? "physical" : "logical");
  if (tensor.is_scaled == 0) return;
  json.key("scale").number(tensor.scale);
  json.key("zero_point").integer(tensor.zero_point);
}

void write_contract(JsonWriter& json, const Program& program) {
  json.key("inputs").begin('[');
  for (size_t i = 0; i < program.inputs(); i++) {
    json.begin('{');
    write_tensor(json, program, program.input(i), nullptr);
    json.end('}');
  }
  json.end(']');
  json.key("outputs").begin('[');
  for (size_t i = 0; i < program.outputs(); i++) {
    json.begin('{');
    write_tensor(json, program, program.output(i), nullptr);
    json.end('}');
  }
  json.end(']');
  write_symbols(json, program.contract());
  write_state(json, program.contract());
}

} // namespace dimorder::runner
