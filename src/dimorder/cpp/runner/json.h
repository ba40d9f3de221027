// Write JSON: values, lists and objects, indented by two.
#pragma once

#include <cstdint>
#include <string>

namespace dimorder::runner {

/// Gets keys and values in their order, and puts the commas between them.
class JsonWriter {
 public:
  JsonWriter& key(const char* name);
  void begin(char bracket);
  void end(char bracket);
  void text(const std::string& value);
  /// null where the number is none that JSON has: NaN or an infinity.
  void number(double value);
  void integer(int64_t value);
  void boolean(bool value);
  void null();

  const std::string& written() const {
    return out_;
  }

 private:
  void before_value();

  std::string out_;
  int depth_ = 0;
  bool is_first_ = true;
  bool has_key_ = false;
};

} // namespace dimorder::runner
