// The identity that a store's client states when it connects: in the handshake's parameters over
// TCP, in a hello frame over a Unix socket (whose other end the kernel authenticates). At most
// net::kHandshakeParameterBytesMax bytes. Format: docs/wire-format.md.
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_HELLO_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_HELLO_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::collectives {

// The numbers of both sides: drawn at random, the same on every connection of a client.
inline constexpr size_t kStoreIdBytes = 16;
std::string NewStoreId();

inline constexpr size_t kStoreJobBytesMax = 96;

struct StoreHello {
  std::string id;    // kStoreIdBytes
  std::string name;  // for people: "rank 3 pid 4711"; cut to 160 bytes
  std::string job;   // the name space of its keys; at most 96 bytes
  std::string host;  // cut to 96 bytes
  // The ranks it speaks for: [rank, rank + ranks). -1, 0: for none. A relay speaks for many.
  int32_t rank = -1;
  int32_t ranks = 0;
  // Generation of these ranks' processes. A client fences those of lower generations.
  int32_t generation = 0;

  friend bool operator==(const StoreHello&, const StoreHello&) = default;
};

std::string EncodeHello(const StoreHello& hello);
absl::StatusOr<StoreHello> DecodeHello(absl::string_view bytes);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_HELLO_H_
