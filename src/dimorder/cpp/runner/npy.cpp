// Read and write arrays of numpy: .npy files of the versions 1.0 to 3.0.
//
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include "npy.h"

#include "numbers.h"

#include <algorithm>
#include <cstring>

namespace dimorder::runner {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = sizeof kMagic - 1;
constexpr int64_t kMostElements = int64_t{1} << 40;

const struct {
  const char* code;
  int dtype;
} kTypes[] = {{"u1", DIMORDER_UINT8},   {"i1", DIMORDER_INT8},    {"i2", DIMORDER_INT16},
              {"i4", DIMORDER_INT32},   {"i8", DIMORDER_INT64},   {"f2", DIMORDER_FLOAT16},
              {"f4", DIMORDER_FLOAT32}, {"f8", DIMORDER_FLOAT64}, {"b1", DIMORDER_BOOL}};

/// What the header of a .npy says.
struct Header {
  std::string type;
  bool is_fortran = false;
  int64_t sizes[DIMORDER_MAX_RANK] = {};
  int rank = 0;
  int64_t elements = 1;
};

/// Reads the dictionary of Python that a header is: text, True and False, tuples of integers.
class HeaderReader {
 public:
  HeaderReader(const char* at, const char* end) : at_(at), end_(end) {}

  /// Why it is no header; empty where it is one.
  std::string read(Header* header) {
    int found = 0;
    if (!take('{')) return "a header that is no dictionary";
    while (!take('}')) {
      std::string key, why;
      if (!text(&key) || !take(':')) return "a header that is damaged";
      if (key == "descr") why = text(&header->type) ? "" : "an array of records";
      else if (key == "fortran_order") why = boolean(&header->is_fortran) ? "" : "a fortran_order that is no boolean";
      else if (key == "shape") why = shape(header);
      else why = "a header with the unknown key '" + key + "'";
      if (!why.empty()) return why;
      found |= key == "descr" ? 1 : key == "fortran_order" ? 2 : 4;
      if (!take(',') && !is_at('}')) return "a header that is damaged";
    }
    return found == 7 ? "" : "a header without its type, order or shape";
  }

 private:
  void skip() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t')) at_++;
  }

  bool is_at(char wanted) {
    skip();
    return at_ != end_ && *at_ == wanted;
  }

  bool take(char wanted) {
    const bool is_there = is_at(wanted);
    if (is_there) at_++;
    return is_there;
  }

  bool text(std::string* found) {
    const char quote = is_at('"') ? '"' : '\'';
    if (!take(quote)) return false;
    const char* end = std::find(at_, end_, quote);
    if (end == end_) return false;
    found->assign(at_, std::min<size_t>(static_cast<size_t>(end - at_), 40));
    for (char& each : *found) each = each >= ' ' && each <= '~' ? each : '?'; // it is shown in errors
    at_ = end + 1;
    return true;
  }

  bool boolean(bool* found) {
    skip();
    for (const char* word : {"True", "False"}) {
      const size_t length = std::strlen(word);
      if (static_cast<size_t>(end_ - at_) < length || std::memcmp(at_, word, length) != 0) continue;
      *found = *word == 'T';
      at_ += length;
      return true;
    }
    return false;
  }

  bool number(int64_t* found) {
    skip();
    const char* begin = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') at_++;
    const dimorder_text word = {begin, static_cast<size_t>(at_ - begin)};
    return dimorder_number(word, 0, INT64_MAX, found) != 0;
  }

  std::string shape(Header* header) {
    header->rank = 0;
    header->elements = 1;
    if (!take('(')) return "a shape that is no tuple";
    while (!take(')')) {
      int64_t size = 0;
      if (header->rank == DIMORDER_MAX_RANK) return "an array of more than 16 dimensions";
      if (!number(&size) || size > INT32_MAX) return "a shape that no tensor has";
      if (header->elements > kMostElements / std::max<int64_t>(size, 1)) return "a shape that no file has room for";
      header->elements *= std::max<int64_t>(size, 1);
      header->sizes[header->rank++] = size;
      if (!take(',') && !is_at(')')) return "a shape that is no tuple of integers";
    }
    for (int i = 0; i < header->rank; i++) header->elements = header->sizes[i] == 0 ? 0 : header->elements;
    return "";
  }

  const char* at_;
  const char* end_;
};

/// The dimorder_dtype of a type such as `<f4`; -1 for one that is no type of a tensor.
int dtype_of(const std::string& type) {
  if (type.size() != 3 || std::strchr("<>|=", type[0]) == nullptr) return -1;
  for (const auto& known : kTypes) {
    if (type.compare(1, 2, known.code) == 0) return known.dtype;
  }
  return -1;
}

/// Where the header of a .npy begins and ends; false where the bytes are no .npy.
bool find_header(const Buffer& file, size_t* begin, size_t* end) {
  const uint8_t* data = file.data();
  if (file.size() < kMagicBytes + 4 || std::memcmp(data, kMagic, kMagicBytes) != 0) return false;
  const unsigned version = data[kMagicBytes];
  if (version < 1 || version > 3 || (version > 1 && file.size() < kMagicBytes + 6)) return false;
  const uint8_t* length = data + kMagicBytes + 2;
  size_t bytes = static_cast<size_t>(length[0]) | static_cast<size_t>(length[1]) << 8;
  if (version > 1) bytes |= static_cast<size_t>(length[2]) << 16 | static_cast<size_t>(length[3]) << 24;
  *begin = kMagicBytes + (version == 1 ? 4 : 6);
  *end = *begin + bytes;
  return bytes <= file.size() - *begin;
}

/// Bring the elements to the beginning of the memory, as this machine reads them.
void take_elements(Buffer* file, size_t from, const Header& header, int dtype) {
  const size_t itemsize = dimorder_itemsize(dtype), bytes = static_cast<size_t>(header.elements) * itemsize;
  uint8_t* data = file->data();
  std::memmove(data, data + from, bytes);
  for (size_t i = 0; header.type[0] == '>' && i < bytes; i += itemsize) std::reverse(data + i, data + i + itemsize);
  for (size_t i = 0; dtype == DIMORDER_BOOL && i < bytes; i++) data[i] = data[i] != 0;
}

} // namespace

Failure read_npy(const std::string& where, const std::string& path, Array* array) {
  const auto refuse = [&](const std::string& why) {
    return Failure(where, "no .npy file of numbers: " + why, "save it with numpy.save");
  };
  if (Failure failure = read_file(where, path, "give the path of a .npy file", &array->memory)) return failure;
  Buffer& file = array->memory;
  size_t begin = 0, end = 0;
  if (!find_header(file, &begin, &end)) {
    return refuse(file.size() == 0 ? "no bytes at all" : "it does not begin as one of version 1 to 3 does");
  }
  Header header;
  const auto* text = reinterpret_cast<const char*>(file.data());
  const std::string why = HeaderReader(text + begin, text + end).read(&header);
  if (why == "an array of records") return {where, why, "save an array of numbers"};
  if (!why.empty()) return refuse(why);
  const int dtype = dtype_of(header.type);
  if (dtype < 0) return {where, "an array of " + header.type, "save an array of numbers"};
  const size_t wanted = static_cast<size_t>(header.elements) * dimorder_itemsize(dtype), held = file.size() - end;
  if (held != wanted) {
    return refuse(std::to_string(held) + " bytes of data where its header promises " + std::to_string(wanted));
  }
  take_elements(&file, end, header, dtype);
  int order[DIMORDER_MAX_RANK];
  for (int i = 0; i < header.rank; i++) order[i] = header.is_fortran ? header.rank - 1 - i : i;
  array->tensor = Tensor::in_order(file.data(), static_cast<ScalarType>(dtype), header.sizes, order, header.rank);
  return {};
}

Failure encode_npy(const std::string& path, const Tensor& tensor, NewFile* file) {
  const int own = static_cast<int>(tensor.dtype), dtype = own == DIMORDER_BFLOAT16 ? DIMORDER_FLOAT32 : own;
  const size_t itemsize = dimorder_itemsize(dtype), count = tensor.numel();
  std::string code;
  for (const auto& known : kTypes) code = known.dtype == dtype ? known.code : code;
  std::string header = std::string("{'descr': '") + (itemsize == 1 ? "|" : "<") + code;
  header += "', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < tensor.rank; i++) {
    header += (i == 0 ? "" : ", ") + std::to_string(tensor.sizes[i]);
  }
  header += tensor.rank == 1 ? ",), }" : "), }";
  header.append(63 - (kMagicBytes + 4 + header.size()) % 64, ' ');
  header += "\n";
  file->path = path;
  file->head.assign(kMagic, kMagicBytes);
  file->head += {1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file->head += header;
  if (!file->data.resize(count * itemsize)) {
    return {"writing " + path, "no memory for " + std::to_string(count * itemsize) + " bytes", "leave -o out", kNo};
  }
  if (own == dtype) {
    if (count != 0) std::memcpy(file->data.data(), tensor.data, count * itemsize);
    return {};
  }
  auto* floats = reinterpret_cast<float*>(file->data.data());
  for (size_t i = 0; i < count; i++) floats[i] = static_cast<float>(element(tensor.data, own, i));
  return {};
}

} // namespace dimorder::runner
