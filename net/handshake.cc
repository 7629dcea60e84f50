#include "net/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

// Prefix of every message: "WEFT", version u16, type u8, zero u8, length of the body u32. It stays
// as it is in every later version, so that any two can tell each other apart. Little-endian.
constexpr absl::string_view kMagic = "WEFT";
constexpr size_t kPrefixBytes = 12;
constexpr uint8_t kChallengeType = 1;
constexpr uint8_t kHelloType = 2;
constexpr uint8_t kVerdictType = 3;

constexpr size_t kNonceBytes = sizeof(Nonce);
constexpr size_t kMacBytes = crypto_auth_BYTES;
static_assert(kMacBytes == 32 && crypto_auth_KEYBYTES == sizeof(JobSecret));
constexpr size_t kHelloFixedBytes = kNonceBytes + 4 * 4 + 2;  // before the parameters
constexpr size_t kVerdictFixedBytes = 2 + 4 + 2 + 2;          // before text and parameters
static_assert(kPrefixBytes + kHelloFixedBytes + kHandshakeParameterBytesMax + kMacBytes <=
              kHandshakeBytesMax);
static_assert(kPrefixBytes + kVerdictFixedBytes + kHandshakeTextBytesMax +
                  kHandshakeParameterBytesMax + kMacBytes <=
              kHandshakeBytesMax);

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Reads fixed fields; ok() is false once something did not fit.
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T Read() {
    T value{};
    absl::string_view raw = ReadBytes(sizeof(T));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  absl::string_view ReadBytes(size_t count) {
    if (count > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    absl::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

void AppendPrefix(std::string& out, uint8_t type, size_t body) {
  out.append(kMagic.data(), kMagic.size());
  Append<uint16_t>(out, kWireVersion);
  Append<uint8_t>(out, type);
  Append<uint8_t>(out, 0);
  Append<uint32_t>(out, static_cast<uint32_t>(body));
}

// The hashing of the key alone is a third of a MAC's work; a thread that opens many connections
// does it once.
crypto_auth_hmacsha512256_state BeginMac(const JobSecret& secret) {
  struct Begun {
    bool valid = false;
    JobSecret secret{};
    crypto_auth_hmacsha512256_state state;
  };
  thread_local Begun begun;
  if (!begun.valid || sodium_memcmp(begun.secret.data(), secret.data(), secret.size()) != 0) {
    begun.valid = true;
    begun.secret = secret;
    crypto_auth_hmacsha512256_init(&begun.state, secret.data(), secret.size());
  }
  return begun.state;
}

// `domain` keeps a MAC of one kind from being taken for one of another.
std::string Mac(const JobSecret& secret, absl::string_view domain,
                std::initializer_list<absl::string_view> parts) {
  crypto_auth_hmacsha512256_state state = BeginMac(secret);
  auto add = [&state](absl::string_view bytes) {
    uint64_t size = bytes.size();  // lengths too, so that parts cannot be cut otherwise
    crypto_auth_hmacsha512256_update(&state, reinterpret_cast<unsigned char*>(&size), sizeof(size));
    crypto_auth_hmacsha512256_update(&state, reinterpret_cast<const unsigned char*>(bytes.data()),
                                     bytes.size());
  };
  add(domain);
  for (absl::string_view part : parts) add(part);
  std::string mac(kMacBytes, '\0');
  crypto_auth_hmacsha512256_final(&state, reinterpret_cast<unsigned char*>(mac.data()));
  return mac;
}

bool SameMac(absl::string_view a, absl::string_view b) {
  return a.size() == kMacBytes && b.size() == kMacBytes &&
         sodium_memcmp(a.data(), b.data(), kMacBytes) == 0;
}

absl::string_view View(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

}  // namespace

Nonce NewNonce() {
  Nonce nonce;
  WEFT_CHECK(sodium_init() >= 0, "libsodium finds no source of randomness");
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

const char* ToString(HandshakePurpose purpose) {
  switch (purpose) {
    case HandshakePurpose::kTcpLink:
      return "tcp link";
    case HandshakePurpose::kShmLink:
      return "shm link";
    case HandshakePurpose::kUcxLink:
      return "ucx link";
    case HandshakePurpose::kMultipathLink:
      return "multipath link";
    case HandshakePurpose::kVerbsLink:
      return "verbs link";
    case HandshakePurpose::kStore:
      return "store";
  }
  return "unknown purpose";
}

absl::StatusCode CodeOf(HandshakeReason reason) {
  switch (reason) {
    case HandshakeReason::kNone:
      return absl::StatusCode::kOk;
    case HandshakeReason::kWrongMagic:
    case HandshakeReason::kMalformed:
      return absl::StatusCode::kInvalidArgument;
    case HandshakeReason::kWrongVersion:
    case HandshakeReason::kWrongWorldSize:
    case HandshakeReason::kWrongPurpose:
      return absl::StatusCode::kFailedPrecondition;
    case HandshakeReason::kWrongSecret:
      return absl::StatusCode::kPermissionDenied;
    case HandshakeReason::kWrongRank:
      return absl::StatusCode::kOutOfRange;
    case HandshakeReason::kWrongTarget:
      return absl::StatusCode::kNotFound;
    case HandshakeReason::kRefused:
      return absl::StatusCode::kUnavailable;
  }
  return absl::StatusCode::kUnknown;
}

namespace internal {

HandshakeReader::Result HandshakeReader::Fail(HandshakeReason reason, std::string error) {
  reason_ = reason, error_ = std::move(error);
  return Result::kError;
}

HandshakeReader::Result HandshakeReader::CheckPrefix(uint8_t type_expected) {
  Cursor in(buffer_);
  in.ReadBytes(kMagic.size());  // compared byte by byte as they came
  auto version = in.Read<uint16_t>();
  auto type = in.Read<uint8_t>();
  auto zero = in.Read<uint8_t>();
  auto body = in.Read<uint32_t>();
  if (version != kWireVersion) {
    return Fail(HandshakeReason::kWrongVersion,
                absl::StrCat("wire versions differ: the other side speaks ", version, ", this one ",
                             kWireVersion, "; run the same Weft on every rank"));
  }
  if (type != type_expected || zero != 0) {
    return Fail(HandshakeReason::kMalformed,
                absl::StrCat("handshake message of type ", type, " where ", type_expected,
                             " was expected"));
  }
  if (body > kHandshakeBytesMax - kPrefixBytes) {
    return Fail(HandshakeReason::kMalformed,
                absl::StrCat("handshake message of ", body, " bytes; at most ",
                             kHandshakeBytesMax - kPrefixBytes, " are allowed"));
  }
  wanted_ = kPrefixBytes + body;
  return Result::kMore;
}

HandshakeReader::Result HandshakeReader::Feed(absl::string_view bytes, uint8_t type_expected,
                                              size_t* used) {
  *used = 0;
  if (reason_ != HandshakeReason::kNone) return Result::kError;
  if (wanted_ != 0 && buffer_.size() == wanted_) buffer_.clear(), wanted_ = 0;  // the next message
  while (*used < bytes.size()) {
    size_t goal = wanted_ == 0 ? kPrefixBytes : wanted_;
    size_t take = std::min(goal - buffer_.size(), bytes.size() - *used);
    buffer_.append(bytes.data() + *used, take);
    *used += take;
    if (wanted_ == 0) {
      size_t known = std::min(buffer_.size(), kMagic.size());
      if (buffer_.compare(0, known, kMagic.data(), known) != 0) {
        return Fail(
            HandshakeReason::kWrongMagic,
            absl::StrCat("no Weft process speaks there: it begins with \"",
                         absl::CEscape(buffer_.substr(0, 16)), "\" instead of \"", kMagic, "\""));
      }
      if (buffer_.size() < kPrefixBytes) return Result::kMore;
      if (CheckPrefix(type_expected) == Result::kError) return Result::kError;
    }
    if (buffer_.size() == wanted_) return Result::kMessage;
  }
  return Result::kMore;
}

}  // namespace internal

using internal::HandshakeReader;

// ---- Listener

ListenerHandshake::ListenerHandshake(const HandshakeIdentity& self, const Nonce& nonce)
    : self_(self), nonce_(nonce) {
  AppendPrefix(output_, kChallengeType, kNonceBytes);
  absl::StrAppend(&output_, View(nonce_));
}

std::string ListenerHandshake::TakeOutput() { return std::exchange(output_, {}); }

size_t ListenerHandshake::Feed(absl::string_view bytes) {
  if (state_ != HandshakeState::kRunning) return 0;
  size_t used = 0;
  switch (reader_.Feed(bytes, kHelloType, &used)) {
    case HandshakeReader::Result::kMore:
      break;
    case HandshakeReader::Result::kError:
      Fail(reader_.reason(), reader_.error());
      break;
    case HandshakeReader::Result::kMessage:
      CheckHello(reader_.message());
      break;
  }
  return used;
}

void ListenerHandshake::CheckHello(absl::string_view message) {
  Cursor in(message);
  in.ReadBytes(kPrefixBytes);
  in.ReadBytes(kNonceBytes);
  Rank rank(in.Read<int32_t>());
  auto world_size = in.Read<int32_t>();
  Rank target(in.Read<int32_t>());
  auto purpose = in.Read<uint32_t>();
  auto parameter_bytes = in.Read<uint16_t>();
  absl::string_view parameters = in.ReadBytes(parameter_bytes);
  absl::string_view mac = in.ReadBytes(kMacBytes);
  if (!in.at_end() || parameter_bytes > kHandshakeParameterBytesMax) {
    return Fail(HandshakeReason::kMalformed, "the lengths within Hello do not add up");
  }
  std::string expected = Mac(self_.secret, "weft hello",
                             {View(nonce_), message.substr(0, message.size() - kMacBytes)});
  if (!SameMac(mac, expected)) {
    return Fail(
        HandshakeReason::kWrongSecret,
        absl::StrCat("the connector, which calls itself rank ", rank.value(), " of ", world_size,
                     ", does not hold this job's secret; it belongs to another "
                     "job or to none"));
  }
  hello_mac_ = expected;
  hello_.rank = rank;
  if (purpose != static_cast<uint32_t>(self_.purpose)) {
    return Fail(HandshakeReason::kWrongPurpose,
                absl::StrCat("rank ", rank.value(), " wants a ",
                             ToString(static_cast<HandshakePurpose>(purpose)), " (", purpose,
                             ") of a listener for a ", ToString(self_.purpose), " (",
                             static_cast<uint32_t>(self_.purpose), ")"));
  }
  if (self_.world_size != 0 && world_size != self_.world_size) {
    return Fail(HandshakeReason::kWrongWorldSize,
                absl::StrCat("world sizes differ: ", world_size, " at rank ", rank.value(), ", ",
                             self_.world_size, " at the listener (rank ", self_.self.value(),
                             "); give every rank the same WORLD_SIZE"));
  }
  if (self_.world_size != 0 && (rank.value() < 0 || rank.value() >= self_.world_size)) {
    return Fail(HandshakeReason::kWrongRank,
                absl::StrCat("rank ", rank.value(), " is not in [0, ", self_.world_size, ")"));
  }
  if (self_.self.value() >= 0 && target.value() >= 0 && target != self_.self) {
    return Fail(HandshakeReason::kWrongTarget,
                absl::StrCat("rank ", rank.value(), " looks for rank ", target.value(),
                             " where rank ", self_.self.value(), " listens; its address is stale"));
  }
  hello_ = {rank, world_size, target, std::string(parameters)};
  state_ = HandshakeState::kHello;
}

void ListenerHandshake::AppendVerdict(HandshakeReason reason, absl::string_view text,
                                      absl::string_view parameters) {
  text = text.substr(0, kHandshakeTextBytesMax);
  std::string verdict;
  AppendPrefix(verdict, kVerdictType,
               kVerdictFixedBytes + text.size() + parameters.size() + kMacBytes);
  Append<uint16_t>(verdict, static_cast<uint16_t>(reason));
  Append<int32_t>(verdict, self_.self.value());
  Append<uint16_t>(verdict, static_cast<uint16_t>(text.size()));
  Append<uint16_t>(verdict, static_cast<uint16_t>(parameters.size()));
  absl::StrAppend(&verdict, text, parameters);
  // To an unauthenticated peer nothing is said with the secret: it could try secrets against it.
  // This verdict, which no connector believes, is for people only.
  absl::StrAppend(&verdict,
                  proven() ? Mac(self_.secret, "weft verdict", {View(nonce_), hello_mac_, verdict})
                           : std::string(kMacBytes, '\0'));
  output_ += verdict;
}

void ListenerHandshake::Fail(HandshakeReason reason, const std::string& why) {
  state_ = HandshakeState::kFailed;
  reason_ = reason;
  status_ = absl::Status(CodeOf(reason), why);
  AppendVerdict(reason, why, {});
}

void ListenerHandshake::Accept(absl::string_view parameters) {
  WEFT_CHECK(state_ == HandshakeState::kHello, "state=" << static_cast<int>(state_));
  WEFT_CHECK(parameters.size() <= kHandshakeParameterBytesMax, "size=" << parameters.size());
  AppendVerdict(HandshakeReason::kNone, {}, parameters);
  state_ = HandshakeState::kDone;
}

void ListenerHandshake::Refuse(absl::string_view why) {
  WEFT_CHECK(state_ == HandshakeState::kHello, "state=" << static_cast<int>(state_));
  Fail(HandshakeReason::kRefused, std::string(why));
}

// ---- Connector

ConnectorHandshake::ConnectorHandshake(const HandshakeIdentity& self, Rank target,
                                       absl::string_view parameters, const Nonce& nonce)
    : self_(self), target_(target), own_parameters_(parameters), nonce_(nonce) {
  WEFT_CHECK(parameters.size() <= kHandshakeParameterBytesMax, "size=" << parameters.size());
}

std::string ConnectorHandshake::TakeOutput() { return std::exchange(output_, {}); }

size_t ConnectorHandshake::Feed(absl::string_view bytes) {
  size_t total = 0;
  while (state_ == HandshakeState::kRunning && total < bytes.size()) {
    size_t used = 0;
    switch (reader_.Feed(bytes.substr(total), challenged_ ? kVerdictType : kChallengeType, &used)) {
      case HandshakeReader::Result::kMore:
        break;
      case HandshakeReader::Result::kError:
        Fail(reader_.reason(), reader_.error());
        break;
      case HandshakeReader::Result::kMessage:
        challenged_ ? CheckVerdict(reader_.message()) : AnswerChallenge(reader_.message());
        break;
    }
    total += used;
  }
  return total;
}

void ConnectorHandshake::AnswerChallenge(absl::string_view message) {
  if (message.size() != kPrefixBytes + kNonceBytes) {
    return Fail(HandshakeReason::kMalformed,
                absl::StrCat("Challenge of ", message.size(), " bytes; ",
                             kPrefixBytes + kNonceBytes, " are right"));
  }
  challenged_ = true;
  std::string hello;
  AppendPrefix(hello, kHelloType, kHelloFixedBytes + own_parameters_.size() + kMacBytes);
  absl::StrAppend(&hello, View(nonce_));
  Append<int32_t>(hello, self_.self.value());
  Append<int32_t>(hello, self_.world_size);
  Append<int32_t>(hello, target_.value());
  Append<uint32_t>(hello, static_cast<uint32_t>(self_.purpose));
  Append<uint16_t>(hello, static_cast<uint16_t>(own_parameters_.size()));
  hello += own_parameters_;
  absl::string_view challenge_nonce = message.substr(kPrefixBytes);
  hello_mac_ = Mac(self_.secret, "weft hello", {challenge_nonce, hello});
  hello += hello_mac_;
  challenge_nonce_ = std::string(challenge_nonce);
  output_ += hello;
}

void ConnectorHandshake::CheckVerdict(absl::string_view message) {
  Cursor in(message);
  in.ReadBytes(kPrefixBytes);
  auto reason = static_cast<HandshakeReason>(in.Read<uint16_t>());
  Rank rank(in.Read<int32_t>());
  auto text_bytes = in.Read<uint16_t>();
  auto parameter_bytes = in.Read<uint16_t>();
  absl::string_view text = in.ReadBytes(text_bytes);
  absl::string_view parameters = in.ReadBytes(parameter_bytes);
  absl::string_view mac = in.ReadBytes(kMacBytes);
  if (!in.at_end() || text_bytes > kHandshakeTextBytesMax ||
      parameter_bytes > kHandshakeParameterBytesMax) {
    return Fail(HandshakeReason::kMalformed, "the lengths within Verdict do not add up");
  }
  absl::string_view unproven = message.substr(0, message.size() - kMacBytes);
  if (!SameMac(mac, Mac(self_.secret, "weft verdict", {challenge_nonce_, hello_mac_, unproven}))) {
    const bool unproven_side = mac == std::string(kMacBytes, '\0');
    return Fail(HandshakeReason::kWrongSecret,
                absl::StrCat("the listener, which calls itself rank ", rank.value(),
                             unproven_side ? ", does not take this side's proof of the job's secret"
                                           : ", does not hold this job's secret",
                             text.empty() ? "" : absl::StrCat("; it says: ", absl::CEscape(text))));
  }
  if (reason != HandshakeReason::kNone) {
    return Fail(reason, absl::StrCat("rank ", rank.value(), " refuses: ", text));
  }
  peer_ = rank;
  peer_parameters_ = std::string(parameters);
  state_ = HandshakeState::kDone;
}

void ConnectorHandshake::Fail(HandshakeReason reason, const std::string& why) {
  state_ = HandshakeState::kFailed;
  reason_ = reason;
  status_ = absl::Status(CodeOf(reason), why);
  if (!challenged_)
    AppendPrefix(output_, kHelloType, 0);  // so that the listener learns our version
}

}  // namespace weft::net
