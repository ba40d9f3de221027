// Read files whole, and write them whole or not at all.
#include "files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace dimorder::runner {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

std::string part_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(0, name) + "." + path.substr(name) + "." + std::to_string(getpid()) + ".part";
}

Failure cannot_write(const std::string& where, int error) {
  return {where, std::string("cannot be written: ") + std::strerror(error),
          "name a file in a folder that exists and that you can write to"};
}

/// 0, or the errno of what failed.
int write_part(const NewFile& file, const std::string& part) {
  std::FILE* stream = std::fopen(part.c_str(), "wb");
  if (stream == nullptr) return errno;
  const size_t head = std::fwrite(file.head.data(), 1, file.head.size(), stream);
  const size_t size = file.data.size();
  const size_t data = size == 0 ? 0 : std::fwrite(file.data.data(), 1, size, stream);
  int error = head == file.head.size() && data == size ? 0 : errno;
  if (std::fclose(stream) != 0 && error == 0) error = errno;
  return error;
}

} // namespace

bool exists(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0;
}

bool is_folder(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

bool ends_with(const std::string& text, const char* suffix) {
  const size_t length = std::strlen(suffix);
  return text.size() >= length && text.compare(text.size() - length, length, suffix) == 0;
}

Failure read_file(const std::string& where, const std::string& path, const char* fix, Buffer* bytes) {
  if (is_folder(path)) return {where, "a folder", fix};
  std::FILE* stream = std::fopen(path.c_str(), "rb");
  if (stream == nullptr) return {where, std::strerror(errno), fix};
  size_t size = 0, read = 0;
  bool has_memory = true;
  do {
    has_memory = bytes->resize(size + (size > kChunk ? size : kChunk)); // doubled, for a pipe does not say its size
    read = has_memory ? std::fread(bytes->data() + size, 1, bytes->size() - size, stream) : 0;
    size += read;
  } while (read != 0);
  const int error = std::ferror(stream) != 0 ? errno : 0;
  std::fclose(stream);
  if (error != 0) return {where, std::strerror(error), fix};
  if (!has_memory || !bytes->resize(size)) {
    return {where, "no memory for its " + std::to_string(size) + " bytes or more", fix, kNo};
  }
  return {};
}

Failure check_writable(const std::string& option, const std::string& path) {
  const std::string where = option + " " + path;
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return {where, "a folder or a device", "name a file"};
  }
  const std::string part = part_of(path);
  std::FILE* stream = std::fopen(part.c_str(), "wb");
  if (stream == nullptr) return cannot_write(where, errno);
  std::fclose(stream);
  std::remove(part.c_str());
  return {};
}

Failure write_files(const std::vector<NewFile>& files) {
  int error = 0;
  size_t at = 0, written = 0;
  for (; error == 0 && written < files.size(); written++) {
    at = written;
    error = write_part(files[at], part_of(files[at].path));
  }
  for (size_t i = 0; error == 0 && i < files.size(); i++) {
    at = i;
    if (std::rename(part_of(files[i].path).c_str(), files[i].path.c_str()) != 0) error = errno;
  }
  if (error == 0) return {};
  for (size_t i = 0; i < written; i++) std::remove(part_of(files[i].path).c_str());
  return cannot_write(files[at].path, error);
}

Failure make_folder(const std::string& path) {
  if (is_folder(path) || mkdir(path.c_str(), 0777) == 0) return {};
  return {"-o " + path, std::string("a folder that cannot be made: ") + std::strerror(errno),
          "name a folder in one that exists and that you can write to"};
}

} // namespace dimorder::runner
