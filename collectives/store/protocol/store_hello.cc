#include "collectives/store/protocol/store_hello.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/little_endian.h"
#include "collectives/store/protocol/store_protocol.h"
#include "net/handshake.h"

namespace weft::collectives {
namespace {

constexpr size_t kNameBytesMax = 160;
constexpr size_t kHostBytesMax = 96;
// id, name and its NUL; rank, ranks, generation; two lengths, job, host.
static_assert(kStoreIdBytes + kNameBytesMax + 1 + 12 + 2 + kStoreJobBytesMax + kHostBytesMax <=
              net::kHandshakeParameterBytesMax);

}  // namespace

std::string NewStoreId() {
  net::Nonce nonce = net::NewNonce();
  return std::string(nonce.begin(), nonce.begin() + kStoreIdBytes);
}

std::string EncodeHello(const StoreHello& hello) {
  std::string name = hello.name.substr(0, kNameBytesMax);
  std::replace(name.begin(), name.end(), '\0', '?');
  std::string host = hello.host.substr(0, kHostBytesMax);
  std::string out = absl::StrCat(hello.id, name);
  out.push_back('\0');
  PutLittle(out, hello.rank);
  PutLittle(out, hello.ranks);
  PutLittle(out, hello.generation);
  out.push_back(static_cast<char>(hello.job.size()));
  out += hello.job;
  out.push_back(static_cast<char>(host.size()));
  return out + host;
}

absl::StatusOr<StoreHello> DecodeHello(absl::string_view bytes) {
  StoreHello hello;
  if (bytes.size() < kStoreIdBytes) {
    return absl::InvalidArgumentError("a store's client must give its number");
  }
  hello.id = std::string(bytes.substr(0, kStoreIdBytes));
  bytes.remove_prefix(kStoreIdBytes);
  size_t end = bytes.find('\0');
  hello.name = std::string(bytes.substr(0, end));
  if (end == absl::string_view::npos) return hello;  // a name and nothing else
  bytes.remove_prefix(end + 1);
  auto text = [&](std::string& out) {
    if (bytes.empty()) return false;
    size_t size = static_cast<uint8_t>(bytes[0]);
    if (bytes.size() < 1 + size) return false;
    out = std::string(bytes.substr(1, size));
    bytes.remove_prefix(1 + size);
    return true;
  };
  bool good = TakeLittle(bytes, &hello.rank) && TakeLittle(bytes, &hello.ranks) &&
              TakeLittle(bytes, &hello.generation) && text(hello.job) && text(hello.host) &&
              bytes.empty();
  bool ranks = hello.ranks == 0 ||
               (hello.rank >= 0 && hello.ranks > 0 && hello.ranks <= kStoreRanksMax - hello.rank);
  if (!good || !ranks || hello.generation < 0) {
    return absl::InvalidArgumentError(absl::StrCat("malformed hello of a store's client: ranks ",
                                                   hello.rank, " + ", hello.ranks, ", generation ",
                                                   hello.generation));
  }
  return hello;
}

}  // namespace weft::collectives
