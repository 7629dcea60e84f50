#include "collectives/rendezvous/store_hello.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "net/handshake.h"

namespace weft::collectives {
namespace {

constexpr size_t kNameBytesMax = 160;
constexpr size_t kHostBytesMax = 96;
// id, name and its NUL; rank, ranks, generation; two lengths, job, host.
static_assert(kStoreIdBytes + kNameBytesMax + 1 + 12 + 2 + kStoreJobBytesMax + kHostBytesMax <=
              net::kHandshakeParameterBytesMax);

void PutNumber(std::string& out, int32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>(static_cast<uint32_t>(value) >> shift));
  }
}

int32_t TakeNumber(absl::string_view& bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  bytes.remove_prefix(4);
  return static_cast<int32_t>(value);
}

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
  PutNumber(out, hello.rank);
  PutNumber(out, hello.ranks);
  PutNumber(out, hello.generation);
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
  bool good = bytes.size() >= 12;
  if (good) {
    hello.rank = TakeNumber(bytes);
    hello.ranks = TakeNumber(bytes);
    hello.generation = TakeNumber(bytes);
    good = text(hello.job) && text(hello.host) && bytes.empty();
  }
  bool ranks =
      hello.ranks == 0 || (hello.rank >= 0 && hello.ranks > 0 &&
                           hello.rank <= std::numeric_limits<int32_t>::max() - hello.ranks);
  if (!good || !ranks || hello.generation < 0) {
    return absl::InvalidArgumentError(absl::StrCat("malformed hello of a store's client: ranks ",
                                                   hello.rank, " + ", hello.ranks, ", generation ",
                                                   hello.generation));
  }
  return hello;
}

}  // namespace weft::collectives
