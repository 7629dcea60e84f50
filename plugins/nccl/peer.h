// What two ends of a connection tell each other: the handle, which NCCL carries from the listening
// to the connecting side, and the greeting on the connection itself. Formats: docs/wire-format.md.
//
// The handle holds a random secret, which a connector gets from NCCL's own bootstrap:
// net/handshake.h refuses unauthenticated peers, port scanners and peers of another job. The
// greeting then states each side's identity, version and settings to the other, so that a pair that
// does not match fails on both sides at once, with both sides' values.
#ifndef WEFT_PLUGINS_NCCL_PEER_H_
#define WEFT_PLUGINS_NCCL_PEER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "net/tcp/socket.h"
#include "net/transport.h"
#include "plugins/nccl/abi/common.h"

namespace weft::nccl {

inline constexpr uint32_t kHandleMagic = 0x484e4657;  // "WFNH"
// Version of handle and greeting. The handle's first 8 bytes mean the same in all versions.
inline constexpr uint16_t kPluginProtocol = 1;

// The numbers are on the wire.
enum class HandleTransport : uint8_t { kTcp = 1, kVerbs = 2, kUcx = 3, kMultipath = 4 };
const char* ToString(HandleTransport transport);  // "tcp", as in WEFT_TRANSPORT

// As it lies in NCCL's 128 bytes, little-endian.
struct Handle {
  uint32_t magic = kHandleMagic;
  uint16_t protocol = kPluginProtocol;
  HandleTransport transport = HandleTransport::kTcp;
  uint8_t zero = 0;
  net::JobSecret secret{};  // of this listener, or of all that share its transport
  uint8_t family = 0;       // 4 or 6
  uint8_t zero2 = 0;
  uint16_t port = 0;
  uint8_t address[16] = {};
  uint32_t process = 0;
  char host[32] = {};     // cut, ends with a zero byte
  char device[16] = {};   // likewise
  uint32_t listener = 0;  // its number among those that share a transport, or over tcp a device
  uint32_t reserved = 0;
  // Zero on the wire. The connecting side keeps the number of its attempt here between calls:
  // NCCL passes the same memory each time.
  uint64_t attempt = 0;
};
static_assert(sizeof(Handle) == abi::kHandleBytes);

// Who is at one end of a connection.
struct PeerInfo {
  std::string version;  // of the library
  std::string host;
  std::string device;
  int64_t process = 0;
  std::string transport;  // "tcp"
  int grouped_receives = 0;
  std::string job;  // fingerprint of WEFT_JOB_SECRET; empty: none

  // "gpu-12 (pid 4711, eth0)".
  std::string ToString() const;
};

Handle MakeHandle(HandleTransport transport, const SocketAddress& address,
                  const net::JobSecret& secret, uint32_t listener, const PeerInfo& self);

// Is it a handle of ours, and one that this version can follow? FailedPrecondition names what it
// is instead; then its secret and address are not to be used.
absl::Status CheckHandle(const Handle& handle, const PeerInfo& self);
// FailedPrecondition: a handle that CheckHandle() passed is of another transport than `own`.
absl::Status CheckTransport(const Handle& handle, HandleTransport own, const PeerInfo& self);
// Why a peer was turned away that has the handle, for the side that listens.
absl::Status MismatchOf(const absl::Status& why, HandleTransport own);
// A link-local address is one of `interface`'s wire.
SocketAddress AddressOf(const Handle& handle, absl::string_view interface);
PeerInfo ListenerOf(const Handle& handle);  // host, device and process only

// Greetings fit a notice (net::kNoticeBytesMax).
std::string EncodeGreeting(const PeerInfo& self);
absl::StatusOr<PeerInfo> DecodeGreeting(absl::string_view text);
std::string EncodeRefusal(absl::string_view why);

// OK when the two can work together; FailedPrecondition names both and each value that differs.
absl::Status CheckMatch(const PeerInfo& self, const PeerInfo& peer);

// This process, but for device and transport. `job`: a hash with WEFT_JOB_SECRET as its key.
// kInvalidArgument: that is set, but no secret.
absl::StatusOr<PeerInfo> ThisProcess();

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PEER_H_
