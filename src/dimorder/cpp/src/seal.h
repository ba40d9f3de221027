// Compare a file with the checksum that dimorder wrote into it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dimorder {

enum class Seal { kIntact, kBroken, kNone };

/// Whether the bytes are those that were sealed. The digest's own place counts as zeros.
Seal check_seal(const uint8_t* pte, size_t bytes);

} // namespace dimorder
