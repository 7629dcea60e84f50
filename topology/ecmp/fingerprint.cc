#include "topology/ecmp/fingerprint.h"

#include <sodium.h>

#include <array>
#include <cstdint>

#include "absl/strings/escaping.h"

namespace weft::topology {

std::string Fingerprint(absl::string_view text) {
  std::array<uint8_t, crypto_generichash_BYTES_MIN> digest{};
  crypto_generichash(digest.data(), digest.size(), reinterpret_cast<const uint8_t*>(text.data()),
                     text.size(), nullptr, 0);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), 8));
}

}  // namespace weft::topology
