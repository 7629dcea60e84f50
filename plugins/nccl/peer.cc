#include "plugins/nccl/peer.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host_name.h"
#include "base/status.h"
#include "base/version.h"
#include "net/secret.h"

namespace weft::nccl {
namespace {

constexpr char kGreeting[] = "weft-nccl 1\n";
constexpr char kRefusal[] = "weft-nccl refused\n";
constexpr size_t kTextBytesMax = 64;  // of one value of a greeting
constexpr size_t kFingerprintBytes = 8;

template <size_t kSize>
void CopyText(char (&to)[kSize], absl::string_view text) {
  std::memcpy(to, text.data(), std::min(text.size(), kSize - 1));
}

template <size_t kSize>
std::string TextOf(const char (&from)[kSize]) {
  return std::string(from, strnlen(from, kSize));
}

std::string Printable(absl::string_view text) {
  std::string out(text.substr(0, kTextBytesMax));
  for (char& c : out) c = c >= ' ' && c <= '~' ? c : '?';
  return out;
}

// Empty: there is no secret.
absl::StatusOr<std::string> JobFingerprint() {
  WEFT_ASSIGN_OR_RETURN(const net::JobSecret secret, net::SecretFromEnvironment());
  if (secret == net::JobSecret{}) return std::string();
  constexpr absl::string_view kPurpose = "weft nccl job";
  unsigned char hash[crypto_generichash_BYTES];
  crypto_generichash(hash, sizeof(hash), reinterpret_cast<const unsigned char*>(kPurpose.data()),
                     kPurpose.size(), secret.data(), secret.size());
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash), kFingerprintBytes});
}

}  // namespace

std::string PeerInfo::ToString() const {
  return absl::StrCat(host, " (pid ", process, ", ", device, ")");
}

Handle MakeHandle(HandleTransport transport, const SocketAddress& address,
                  const net::JobSecret& secret, uint32_t listener, const PeerInfo& self) {
  Handle handle;
  handle.transport = transport;
  handle.secret = secret;
  handle.listener = listener;
  handle.port = static_cast<uint16_t>(address.port());
  if (address.family() == AF_INET6) {
    handle.family = 6;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address.get());
    std::memcpy(handle.address, &v6->sin6_addr, 16);
  } else {
    handle.family = 4;
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address.get());
    std::memcpy(handle.address, &v4->sin_addr, 4);
  }
  handle.process = static_cast<uint32_t>(self.process);
  CopyText(handle.host, self.host);
  CopyText(handle.device, self.device);
  return handle;
}

absl::Status CheckHandle(const Handle& handle, const PeerInfo& self) {
  if (handle.magic != kHandleMagic) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer's handle is not one of Weft's (it begins with ",
        absl::Hex(handle.magic, absl::kZeroPad8), ", ours with ",
        absl::Hex(kHandleMagic, absl::kZeroPad8), "); ", self.host,
        " uses the Weft plugin and the peer another network: look for \"Using network\" in both "
        "logs, and set NCCL_NET_PLUGIN=weft on every host"));
  }
  std::string peer = ListenerOf(handle).ToString();
  if (handle.protocol != kPluginProtocol) {
    return absl::FailedPreconditionError(absl::StrCat(
        peer, " speaks version ", handle.protocol, " of the plugin's protocol, ", self.host,
        " version ", kPluginProtocol, "; install the same libnccl-net-weft.so on every host"));
  }
  if (handle.family != 4 && handle.family != 6) {
    return absl::FailedPreconditionError(absl::StrCat(peer, " listens with address family ",
                                                      handle.family, "; ", self.host,
                                                      " knows families 4 and 6"));
  }
  return absl::OkStatus();
}

absl::Status CheckTransport(const Handle& handle, HandleTransport own, const PeerInfo& self) {
  if (handle.transport == own) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the two ends do not match: the transport is ", ToString(own), " on ", self.ToString(),
      " and ", ToString(handle.transport), " (", static_cast<int>(handle.transport), ") on ",
      ListenerOf(handle).ToString(),
      ": set the same WEFT_TRANSPORT on every host; with auto, a host without a usable RDMA port "
      "takes tcp: its line \"NET/Weft : version\" says why"));
}

absl::Status MismatchOf(const absl::Status& why, HandleTransport own) {
  return Annotate(why, absl::StrCat("a peer that has the handle does not match this side's "
                                    "WEFT_TRANSPORT (",
                                    ToString(own), ") or its device"));
}

SocketAddress AddressOf(const Handle& handle, absl::string_view interface) {
  if (handle.family == 6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(handle.port);
    std::memcpy(&v6.sin6_addr, handle.address, 16);
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) {
      v6.sin6_scope_id = if_nametoindex(std::string(interface).c_str());
    }
    return {reinterpret_cast<const sockaddr*>(&v6), sizeof(v6)};
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(handle.port);
  std::memcpy(&v4.sin_addr, handle.address, 4);
  return {reinterpret_cast<const sockaddr*>(&v4), sizeof(v4)};
}

PeerInfo ListenerOf(const Handle& handle) {
  PeerInfo info;
  info.host = Printable(TextOf(handle.host));
  info.device = Printable(TextOf(handle.device));
  info.process = handle.process;
  return info;
}

std::string EncodeGreeting(const PeerInfo& self) {
  return absl::StrCat(kGreeting, "version ", Printable(self.version), "\nhost ",
                      Printable(self.host), "\ndevice ", Printable(self.device), "\nprocess ",
                      self.process, "\ntransport ", self.transport, "\ngrouped_receives ",
                      self.grouped_receives, "\njob ", self.job, "\n");
}

std::string EncodeRefusal(absl::string_view why) {
  return absl::StrCat(kRefusal, why.substr(0, net::kNoticeBytesMax - sizeof(kRefusal)));
}

absl::StatusOr<PeerInfo> DecodeGreeting(absl::string_view text) {
  if (absl::ConsumePrefix(&text, kRefusal)) return absl::FailedPreconditionError(text);
  if (!absl::ConsumePrefix(&text, kGreeting)) {
    return absl::FailedPreconditionError(
        absl::StrCat("a greeting that this version does not know: \"", Printable(text), "\""));
  }
  PeerInfo info;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    auto [key, value] = parts;
    if (key == "version") info.version = Printable(value);
    if (key == "host") info.host = Printable(value);
    if (key == "device") info.device = Printable(value);
    if (key == "process" && !absl::SimpleAtoi(value, &info.process)) info.process = 0;
    if (key == "transport") info.transport = Printable(value);
    if (key == "grouped_receives" && !absl::SimpleAtoi(value, &info.grouped_receives)) {
      info.grouped_receives = 0;
    }
    if (key == "job") info.job = Printable(value);
  }
  return info;
}

absl::Status CheckMatch(const PeerInfo& self, const PeerInfo& peer) {
  std::vector<std::string> differences;
  auto compare = [&](absl::string_view what, absl::string_view ours, absl::string_view theirs,
                     absl::string_view remedy) {
    if (ours == theirs) return;
    auto shown = [](absl::string_view value) { return value.empty() ? "(none)" : value; };
    differences.push_back(absl::StrCat(what, " is ", shown(ours), " on ", self.ToString(), " and ",
                                       shown(theirs), " on ", peer.ToString(), remedy));
  };
  compare("the library's version", self.version, peer.version,
          ": install the same libnccl-net-weft.so on every host");
  compare("the transport", self.transport, peer.transport, ": set the same WEFT_TRANSPORT");
  compare("the number of grouped receives", absl::StrCat(self.grouped_receives),
          absl::StrCat(peer.grouped_receives), "");
  compare("the fingerprint of WEFT_JOB_SECRET", self.job, peer.job,
          ": set the same secret on every host, or none");
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the two ends do not match: ", absl::StrJoin(differences, "; ")));
}

absl::StatusOr<PeerInfo> ThisProcess() {
  PeerInfo info;
  info.host = HostName();
  info.version = Version();
  info.process = getpid();
  WEFT_ASSIGN_OR_RETURN(info.job, JobFingerprint());
  return info;
}

}  // namespace weft::nccl
