// Tell what a run gave: as the text of Python's `dimorder run`, or as JSON.
#include "report.h"

#include "contract_text.h"
#include "json.h"
#include "numbers.h"
#include "outputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace dimorder::runner {
namespace {

std::string output_text(const dimorder_tensor& promised, const Tensor& tensor) {
  const Summary summary = summarise(tensor);
  const size_t count = tensor.numel();
  std::string text = name_of(promised) + "  " + shape_of(tensor) + "  " + type_of(promised) + "  ";
  text += order_of(promised) + "\n";
  if (summary.finite != 0) {
    text += "  largest";
    for (const Place& place : summary.largest) {
      const char* gap = &place == &summary.largest.front() ? "  " : "   ";
      text += gap + indices_text(tensor, place.index) + " " + six_digits(place.value);
    }
    text += "\n  from " + six_digits(summary.minimum) + " to " + six_digits(summary.maximum) + ", mean " +
        six_digits(summary.mean) + "\n";
  }
  if (summary.finite == count) return text;
  text += "  " + std::to_string(count - summary.finite) + " of " + std::to_string(count);
  return text + " values are not finite\n";
}

uint64_t cost_bytes(const Report& report) {
  uint64_t bytes = 0;
  for (const Conversion& conversion : report.conversions) bytes += conversion.cost_bytes;
  return bytes;
}

const dimorder_tensor& tensor_of(const Program& program, const Conversion& conversion) {
  return conversion.is_input ? program.input(conversion.index) : program.output(conversion.index);
}

std::string guard_text(const Program& program, const Report& report) {
  if (report.conversions.empty()) return "guard  converted nothing\n";
  std::string text = "guard  converted " + std::to_string(report.conversions.size()) + ", " +
      with_commas(cost_bytes(report)) + " bytes\n";
  for (const Conversion& each : report.conversions) {
    const dimorder_tensor& tensor = tensor_of(program, each);
    text += "  " + name_of(tensor) + ": " + each.found + " -> " + order_of(tensor) + ", ";
    text += with_commas(each.cost_bytes) + " bytes\n";
  }
  return text;
}

/// The median, the least and the largest of the times.
struct Times {
  double median, least, largest;
};

Times times_of(std::vector<double> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  const size_t middle = milliseconds.size() / 2;
  const double above = milliseconds[middle], below = milliseconds[milliseconds.size() % 2 == 0 ? middle - 1 : middle];
  return {(above + below) / 2, milliseconds.front(), milliseconds.back()};
}

std::string times_text(const std::vector<double>& milliseconds) {
  if (milliseconds.empty()) return "";
  const Times times = times_of(milliseconds);
  char text[160];
  std::snprintf(
      text, sizeof text, "time   median %.3f ms, least %.3f, largest %.3f, of %zu calls\n", times.median, times.least,
      times.largest, milliseconds.size());
  return text;
}

void write_summary(JsonWriter& json, const Tensor& tensor) {
  const Summary summary = summarise(tensor);
  const bool has_values = summary.finite != 0;
  json.key("minimum").number(has_values ? summary.minimum : NAN);
  json.key("maximum").number(has_values ? summary.maximum : NAN);
  json.key("mean").number(has_values ? summary.mean : NAN);
  json.key("not_finite").integer(static_cast<int64_t>(tensor.numel() - summary.finite));
  json.key("largest").begin('[');
  for (const Place& place : summary.largest) {
    json.begin('{');
    json.key("place").begin('[');
    for (const int64_t each : indices(tensor, place.index)) json.integer(each);
    json.end(']');
    json.key("value").number(place.value);
    json.end('}');
  }
  json.end(']');
}

void write_guard(JsonWriter& json, const Program& program, const Report& report) {
  json.key("guard").begin('{');
  json.key("conversions").integer(static_cast<int64_t>(report.conversions.size()));
  json.key("cost_bytes").integer(static_cast<int64_t>(cost_bytes(report)));
  json.key("converted").begin('[');
  for (const Conversion& each : report.conversions) {
    json.begin('{');
    const dimorder_tensor& tensor = tensor_of(program, each);
    json.key("tensor").text(name_of(tensor));
    json.key("found").text(each.found);
    json.key("promised").text(order_of(tensor));
    json.key("bytes").integer(static_cast<int64_t>(each.cost_bytes));
    json.end('}');
  }
  json.end(']');
  json.end('}');
}

void write_times(JsonWriter& json, const std::vector<double>& milliseconds) {
  if (milliseconds.empty()) return;
  const Times times = times_of(milliseconds);
  json.key("rounds").begin('{');
  json.key("count").integer(static_cast<int64_t>(milliseconds.size()));
  json.key("median_ms").number(times.median);
  json.key("least_ms").number(times.least);
  json.key("largest_ms").number(times.largest);
  json.end('}');
}

} // namespace

std::string text_report(const Program& program, const Report& report) {
  std::string text;
  for (size_t i = 0; i < report.outputs.size(); i++) text += output_text(program.output(i), report.outputs[i].tensor);
  text += guard_text(program, report) + times_text(report.milliseconds);
  for (const Difference& difference : report.differences) text += line_of(difference) + "\n";
  return text;
}

std::string json_report(const Settings& settings, const Program& program, const Report& report) {
  JsonWriter json;
  json.begin('{');
  json.key("program").text(settings.program);
  json.key("inputs").begin('[');
  for (size_t i = 0; i < program.inputs(); i++) {
    json.begin('{');
    write_tensor(json, program, program.input(i), nullptr);
    json.end('}');
  }
  json.end(']');
  json.key("outputs").begin('[');
  for (size_t i = 0; i < report.outputs.size(); i++) {
    json.begin('{');
    write_tensor(json, program, program.output(i), &report.outputs[i].tensor);
    write_summary(json, report.outputs[i].tensor);
    json.end('}');
  }
  json.end(']');
  write_guard(json, program, report);
  write_times(json, report.milliseconds);
  if (!settings.expectations.empty()) {
    json.key("expect").begin('[');
    for (const Difference& difference : report.differences) write_difference(json, difference);
    json.end(']');
  }
  json.end('}');
  return json.written() + "\n";
}

std::string text_contract(const Program& program) {
  const char* origin = program.has_contract() ? "contract  in the file\n"
                                              : "contract  none in the file: this is what its own tensors say\n";
  return contract_table(program) + origin;
}

std::string json_contract(const Settings& settings, const Program& program) {
  JsonWriter json;
  json.begin('{');
  json.key("program").text(settings.program);
  json.key("has_contract").boolean(program.has_contract());
  write_contract(json, program);
  json.end('}');
  return json.written() + "\n";
}

} // namespace dimorder::runner
