// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected), as in iSCSI, RFC 3720 appendix B.4. With
// the processor's own instruction where it has one (x86 SSE4.2, asked at run time), else by tables.
#ifndef WEFT_BASE_CRC32C_H_
#define WEFT_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// Crc32c(b, Crc32c(a)) is the checksum of a followed by b. Thread-safe.
uint32_t Crc32c(absl::Span<const std::byte> bytes, uint32_t before = 0);
uint32_t Crc32c(absl::string_view text, uint32_t before = 0);
// The checksum of b alone, by those of a and of a followed by b: no byte is read again.
uint32_t Crc32cOfSecond(uint32_t first, uint32_t both, uint64_t second_bytes);

namespace internal {
uint32_t Crc32cByTable(absl::Span<const std::byte> bytes, uint32_t before);
}  // namespace internal

}  // namespace weft

#endif  // WEFT_BASE_CRC32C_H_
