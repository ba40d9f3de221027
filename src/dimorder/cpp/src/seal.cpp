// SHA-256 (FIPS 180-4) of a file, in which the digest's own place counts as zeros.
#include "seal.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace dimorder {
namespace {

constexpr char kMark[] = "dimorder sha256 ";
constexpr size_t kMarkBytes = sizeof kMark - 1;
constexpr size_t kDigits = 64;
constexpr size_t kBlock = 64;

constexpr std::array<uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotate(uint32_t word, int bits) {
  return word >> bits | word << (32 - bits);
}

class Sha256 {
 public:
  void update(const uint8_t* bytes, size_t count) {
    total_ += count;
    while (count != 0) {
      const size_t taken = std::min(count, kBlock - held_);
      std::memcpy(block_.data() + held_, bytes, taken);
      held_ += taken;
      bytes += taken;
      count -= taken;
      if (held_ == kBlock) {
        compress();
        held_ = 0;
      }
    }
  }

  std::array<char, kDigits> hexadecimal() {
    const uint64_t bits = total_ * 8;
    const uint8_t one = 0x80, zero = 0;
    update(&one, 1);
    while (held_ != kBlock - 8) update(&zero, 1);
    std::array<uint8_t, 8> length;
    for (size_t i = 0; i < 8; i++) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    update(length.data(), length.size());
    std::array<char, kDigits> digits;
    for (size_t i = 0; i < kDigits; i++) {
      digits[i] = "0123456789abcdef"[state_[i / 8] >> (28 - 4 * (i % 8)) & 15u];
    }
    return digits;
  }

 private:
  void compress() {
    std::array<uint32_t, 64> words;
    for (size_t i = 0; i < 16; i++) {
      const uint8_t* four = block_.data() + 4 * i;
      words[i] = static_cast<uint32_t>(four[0]) << 24 | static_cast<uint32_t>(four[1]) << 16 |
          static_cast<uint32_t>(four[2]) << 8 | static_cast<uint32_t>(four[3]);
    }
    for (size_t i = 16; i < 64; i++) {
      const uint32_t early = words[i - 15], late = words[i - 2];
      words[i] = words[i - 16] + words[i - 7] + (rotate(early, 7) ^ rotate(early, 18) ^ early >> 3) +
          (rotate(late, 17) ^ rotate(late, 19) ^ late >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; i++) {
      const uint32_t first =
          h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
      const uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + first;
      d = c;
      c = b;
      b = a;
      a = first + second;
    }
    const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; i++) state_[i] += mixed[i];
  }

  std::array<uint32_t, 8> state_ = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, kBlock> block_ = {};
  size_t held_ = 0;
  uint64_t total_ = 0;
};

} // namespace

Seal check_seal(const uint8_t* pte, size_t bytes) {
  const uint8_t* end = pte + bytes;
  const uint8_t* mark = std::search(pte, end, kMark, kMark + kMarkBytes);
  if (mark == end || static_cast<size_t>(end - mark) < kMarkBytes + kDigits) return Seal::kNone;
  const uint8_t* digest = mark + kMarkBytes;
  std::array<uint8_t, kDigits> zeros;
  zeros.fill('0');
  if (std::memcmp(digest, zeros.data(), kDigits) == 0) return Seal::kNone;
  Sha256 sha;
  sha.update(pte, static_cast<size_t>(digest - pte));
  sha.update(zeros.data(), kDigits);
  sha.update(digest + kDigits, static_cast<size_t>(end - digest) - kDigits);
  return std::memcmp(sha.hexadecimal().data(), digest, kDigits) == 0 ? Seal::kIntact : Seal::kBroken;
}

} // namespace dimorder
