// Read files whole, and write them whole or not at all.
#pragma once

#include "array.h"
#include "failure.h"

#include <string>
#include <vector>

namespace dimorder::runner {

/// A file to be written: its head, and then the bytes.
struct NewFile {
  std::string path;
  std::string head;
  Buffer data;
};

bool exists(const std::string& path);
bool is_folder(const std::string& path);
bool ends_with(const std::string& text, const char* suffix);

/// The bytes of a file; `where` names it in the failure, whose fix is `fix`.
Failure read_file(const std::string& where, const std::string& path, const char* fix, Buffer* bytes);

/// Refuse a path that cannot be written, before the long work begins.
Failure check_writable(const std::string& option, const std::string& path);

/// Write each file beside its place, and rename them when all are whole.
Failure write_files(const std::vector<NewFile>& files);

/// Make a folder if there is none.
Failure make_folder(const std::string& path);

} // namespace dimorder::runner
