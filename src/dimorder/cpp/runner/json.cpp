// Write JSON: values, lists and objects, indented by two.
#include "json.h"

#include "numbers.h"

#include <cmath>
#include <cstdio>

namespace dimorder::runner {
namespace {

/// How many bytes the UTF-8 character at `at` has; 0 where there is none.
size_t utf8_length(const std::string& text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  size_t length = 0;
  if (lead < 0x80) length = 1;
  else if (lead >= 0xc2 && lead < 0xe0) length = 2;
  else if (lead >= 0xe0 && lead < 0xf0) length = 3;
  else if (lead >= 0xf0 && lead < 0xf5) length = 4;
  if (at + length > text.size()) return 0;
  for (size_t i = 1; i < length; i++) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const char byte = text[at];
    if (length == 0) {
      out += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      out += std::string("\\") + byte;
    } else if (length == 1 && static_cast<unsigned char>(byte) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(byte));
      out += escape;
    } else {
      out.append(text, at, length);
    }
    at += length == 0 ? 1 : length;
  }
  return out + "\"";
}

} // namespace

void JsonWriter::before_value() {
  if (has_key_) {
    has_key_ = false;
    return;
  }
  if (depth_ == 0) return;
  out_ += is_first_ ? "\n" : ",\n";
  out_.append(static_cast<size_t>(depth_) * 2, ' ');
  is_first_ = false;
}

JsonWriter& JsonWriter::key(const char* name) {
  before_value();
  out_ += quoted(name) + ": ";
  has_key_ = true;
  return *this;
}

void JsonWriter::begin(char bracket) {
  before_value();
  out_ += bracket;
  depth_++;
  is_first_ = true;
}

void JsonWriter::end(char bracket) {
  depth_--;
  if (!is_first_) {
    out_ += "\n";
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
  }
  out_ += bracket;
  is_first_ = false;
}

void JsonWriter::text(const std::string& value) {
  before_value();
  out_ += quoted(value);
}

void JsonWriter::number(double value) {
  before_value();
  out_ += std::isfinite(value) ? shortest(value) : "null";
}

void JsonWriter::integer(int64_t value) {
  before_value();
  out_ += std::to_string(value);
}

void JsonWriter::boolean(bool value) {
  before_value();
  out_ += value ? "true" : "false";
}

void JsonWriter::null() {
  before_value();
  out_ += "null";
}

} // namespace dimorder::runner
