// Say what went wrong: three lines, where, what was found, what to do; and the exit code that follows.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

namespace dimorder::runner {

/// Those of the Python command: NO is for a tensor or a file that is refused, and for an expectation that fails.
enum ExitCode { kDone = 0, kNo = 1, kUsage = 2 };

/// What went wrong; empty where nothing did.
struct [[nodiscard]] Failure {
  std::string lines;
  int code = kDone;

  Failure() = default;
  Failure(const std::string& where, const std::string& found, const std::string& fix, int code = kUsage)
      : lines(where + "\n  found: " + found + "\n  fix: " + fix), code(code) {}

  /// One whose three lines are written already, as those of dimorder::Program.
  static Failure with_lines(std::string lines, int code) {
    Failure failure;
    failure.lines = std::move(lines);
    failure.code = code;
    return failure;
  }

  explicit operator bool() const {
    return code != kDone;
  }

  void print() const {
    std::fprintf(stderr, "%s\n", lines.c_str());
  }
};

} // namespace dimorder::runner
