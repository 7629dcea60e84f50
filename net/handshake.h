// The handshake that opens every connection of Weft: tcp sockets, shm's unix sockets, the store's.
// Both sides prove that they hold the job's secret before either takes the other seriously.
//
//   listener                                     connector
//   Challenge{nonce} ------------------------>
//            <------------------------ Hello{nonce, rank, world size, target, purpose,
//                                            parameters, MAC over both nonces and all this}
//   Verdict{reason, rank, text, parameters,
//           MAC over Hello's MAC and all this} ->
//
// The MAC is HMAC-SHA512/256 under the 32-byte secret; fresh nonces make a recorded Hello
// worthless. It authenticates both ends when the connection opens. It neither hides nor protects
// the bytes sent later: an attacker who can rewrite packets between two hosts of the job is outside
// of what it defends against.
//
// The connector proves itself first: to a peer that has not, a listener says nothing that depends
// on the secret, and its Verdict has zeros for a MAC. A connector must begin, so an attacker
// who poses as the listener gets a MAC over known bytes, and can try secrets against it offline: a
// secret is random (net/secret.h) or stretched from a long passphrase, never a password.
//
// This is a protocol core without I/O: bytes in, bytes out, no clock (the owner sets a deadline:
// kHandshakeTimeout), no descriptors. A message is at most kHandshakeBytesMax long, whatever the
// other side claims. Format: docs/wire-format.md. Not thread-safe.
//
//   ListenerHandshake h(identity, NewNonce());            ConnectorHandshake h(identity, ...);
//   write h.TakeOutput() whenever it is not empty; after each read:  used = h.Feed(bytes);
//   bytes from `used` on belong to the protocol that follows;
//   until h.state() is kDone, or kFailed: flush TakeOutput(), then close.
//   Listener only: at kHello look at h.hello() and call Accept() or Refuse().
#ifndef WEFT_NET_HANDSHAKE_H_
#define WEFT_NET_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "net/transport.h"

namespace weft::net {

// Raised when any byte that one side sends to another changes its meaning, in any protocol of ours.
inline constexpr uint16_t kWireVersion = 7;
inline constexpr size_t kHandshakeBytesMax = 1024;          // one message, prefix included
inline constexpr size_t kHandshakeParameterBytesMax = 512;  // the blob in Hello and in Verdict
inline constexpr size_t kHandshakeTextBytesMax = 320;       // the reason in Verdict, cut to this
// A connection that has not finished by then is closed by the listener.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);

using Nonce = std::array<uint8_t, 32>;
Nonce NewNonce();  // from the kernel's generator

// What the connection is for. A listener serves one purpose.
enum class HandshakePurpose : uint32_t {
  kTcpLink = 1,
  kShmLink = 2,
  kStore = 3,
  kUcxLink = 4,
  kMultipathLink = 5,
  kVerbsLink = 6,
};
const char* ToString(HandshakePurpose purpose);  // "tcp link"

// Why a handshake failed; numbers are on the wire. Each maps to one status code.
enum class HandshakeReason : uint16_t {
  kNone = 0,
  kWrongMagic = 1,      // kInvalidArgument: no Weft process at the other end
  kWrongVersion = 2,    // kFailedPrecondition
  kMalformed = 3,       // kInvalidArgument: lengths or types that the version does not allow
  kWrongSecret = 4,     // kPermissionDenied: another job, or none
  kWrongWorldSize = 5,  // kFailedPrecondition
  kWrongRank = 6,       // kOutOfRange: not in [0, world size)
  kWrongTarget = 7,     // kNotFound: the connector looks for another rank than the listener is
  kWrongPurpose = 8,    // kFailedPrecondition: a tcp link wanted from a store, ...
  kRefused = 9,         // kUnavailable: Refuse() of the listener's owner
};
absl::StatusCode CodeOf(HandshakeReason reason);

// Who we are. A listener that is no rank (a store) has rank -1 and is no target to be checked; one
// with world_size 0 admits any rank and any world size.
struct HandshakeIdentity {
  Rank self;
  int world_size = 0;
  JobSecret secret{};
  HandshakePurpose purpose = HandshakePurpose::kTcpLink;
};

struct Hello {
  Rank rank;
  int world_size = 0;
  Rank target;             // which the connector means to reach; -1: any listener
  std::string parameters;  // the owner's, <= kHandshakeParameterBytesMax
};

enum class HandshakeState : uint8_t {
  kRunning,
  kHello,   // listener: a proven Hello waits for Accept() or Refuse()
  kDone,    // listener: once TakeOutput() is written
  kFailed,  // status() and reason() say why; flush TakeOutput() (it tells the other side), close
};

namespace internal {
// Collects one message; never holds more than kHandshakeBytesMax.
class HandshakeReader {
 public:
  enum class Result : uint8_t { kMore, kMessage, kError };
  // Takes bytes up to the end of one message; `used` says how many.
  Result Feed(absl::string_view bytes, uint8_t type_expected, size_t* used);
  absl::string_view message() const { return buffer_; }
  HandshakeReason reason() const { return reason_; }
  const std::string& error() const { return error_; }

 private:
  Result Fail(HandshakeReason reason, std::string error);
  Result CheckPrefix(uint8_t type_expected);
  std::string buffer_;
  size_t wanted_ = 0;  // 0: the prefix is not whole yet
  HandshakeReason reason_ = HandshakeReason::kNone;
  std::string error_;
};
}  // namespace internal

class ListenerHandshake {
 public:
  ListenerHandshake(const HandshakeIdentity& self, const Nonce& nonce);

  size_t Feed(absl::string_view bytes);  // how many were used; the rest is the owner's
  std::string TakeOutput();              // to be written to the connector; empty: nothing

  // At kHello only. `parameters` go back to the connector; `why` reaches it as text.
  void Accept(absl::string_view parameters);
  void Refuse(absl::string_view why);

  HandshakeState state() const { return state_; }
  const Hello& hello() const { return hello_; }  // from kHello on; failed, but proven(): its rank
  bool proven() const { return !hello_mac_.empty(); }  // the connector holds the secret
  const absl::Status& status() const { return status_; }
  HandshakeReason reason() const { return reason_; }

 private:
  void Fail(HandshakeReason reason, const std::string& why);
  void CheckHello(absl::string_view message);
  void AppendVerdict(HandshakeReason reason, absl::string_view text, absl::string_view parameters);

  HandshakeIdentity self_;
  Nonce nonce_;
  internal::HandshakeReader reader_;
  HandshakeState state_ = HandshakeState::kRunning;
  HandshakeReason reason_ = HandshakeReason::kNone;
  absl::Status status_;
  Hello hello_;
  std::string hello_mac_;
  std::string output_;
};

class ConnectorHandshake {
 public:
  // `target`: the rank expected at the other end, or -1. `parameters` <=
  // kHandshakeParameterBytesMax.
  ConnectorHandshake(const HandshakeIdentity& self, Rank target, absl::string_view parameters,
                     const Nonce& nonce);

  size_t Feed(absl::string_view bytes);
  std::string TakeOutput();

  HandshakeState state() const { return state_; }
  // At kDone: the listener's rank (-1: no rank), and what its owner passed to Accept().
  Rank peer() const { return peer_; }
  const std::string& parameters() const { return peer_parameters_; }
  const absl::Status& status() const { return status_; }
  HandshakeReason reason() const { return reason_; }

 private:
  void Fail(HandshakeReason reason, const std::string& why);
  void AnswerChallenge(absl::string_view message);
  void CheckVerdict(absl::string_view message);

  HandshakeIdentity self_;
  Rank target_;
  std::string own_parameters_;
  std::string challenge_nonce_;
  Nonce nonce_;
  internal::HandshakeReader reader_;
  HandshakeState state_ = HandshakeState::kRunning;
  HandshakeReason reason_ = HandshakeReason::kNone;
  absl::Status status_;
  bool challenged_ = false;
  std::string hello_mac_;
  std::string output_;
  Rank peer_;
  std::string peer_parameters_;
};

}  // namespace weft::net

#endif  // WEFT_NET_HANDSHAKE_H_
