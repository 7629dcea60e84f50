#include "net/verbs/choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft::net {
namespace {

bool IsUsable(const NicGid& gid) { return !IsUnset(gid.gid) && !IsLinkLocal(gid.gid); }

std::string Words(const NicGid& gid) {
  return absl::StrCat(ToString(gid.kind), ", ",
                      IsIpv4(gid.gid)        ? "IPv4"
                      : IsLinkLocal(gid.gid) ? "link-local"
                                             : "IPv6");
}

std::string Table(const std::vector<NicGid>& gids) {
  std::string out;
  for (const NicGid& gid : gids) {
    absl::StrAppend(&out, out.empty() ? "" : "; ", gid.index, ": ", GidText(gid.gid), " (",
                    Words(gid), ")");
  }
  return out.empty() ? "the table is empty" : out;
}

}  // namespace

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

const char* ToString(GidKind kind) {
  switch (kind) {
    case GidKind::kInfiniband:
      return "InfiniBand";
    case GidKind::kRoceV1:
      return "RoCE v1";
    case GidKind::kRoceV2:
      return "RoCE v2";
  }
  return "";
}

bool IsIpv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
         gid[10] == 0xFF && gid[11] == 0xFF;
}

bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80; }

bool IsUnset(const Gid& gid) {  // also when only the prefix is there
  return std::all_of(gid.begin() + (IsLinkLocal(gid) ? 8 : 0), gid.end(),
                     [](uint8_t b) { return b == 0; });
}

bool GidRange::Holds(const Gid& gid) const {
  for (int bit = 0; bit < bits; ++bit) {
    const auto byte = static_cast<size_t>(bit / 8);
    if (((gid[byte] ^ prefix[byte]) & (0x80 >> bit % 8)) != 0) return false;
  }
  return true;
}

absl::StatusOr<GidRange> ParseGidRange(absl::string_view text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('/', 1));
  GidRange out;
  out.text = std::string(text);
  const bool is_ipv4 = inet_pton(AF_INET, parts.first.c_str(), &out.prefix[12]) == 1;
  if (is_ipv4) out.prefix[10] = out.prefix[11] = 0xFF;
  const int most = is_ipv4 ? 32 : 128;
  if ((!is_ipv4 && inet_pton(AF_INET6, parts.first.c_str(), out.prefix.data()) != 1) ||
      !absl::SimpleAtoi(parts.second, &out.bits) || out.bits < 0 || out.bits > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no range of addresses such as 10.1.0.0/16 or fd00::/8"));
  }
  if (is_ipv4) out.bits += 96;
  return out;
}

bool DeviceIsWanted(absl::string_view filter, absl::string_view name, int port) {
  if (filter.empty()) return true;
  bool exclude = false, exact = false;
  while (!filter.empty() && (filter[0] == '^' || filter[0] == '=')) {
    (filter[0] == '^' ? exclude : exact) = true;
    filter.remove_prefix(1);
  }
  bool named = false;
  for (absl::string_view word : absl::StrSplit(filter, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits(':', 1));
    int wanted_port = 0;
    const bool port_fits = parts.second.empty() ||
                           (absl::SimpleAtoi(parts.second, &wanted_port) && wanted_port == port);
    const bool name_fits = exact ? name == parts.first : absl::StartsWith(name, parts.first);
    named = named || (name_fits && port_fits);
  }
  return named != exclude;
}

absl::StatusOr<GidChoice> ChooseGid(const std::vector<NicGid>& gids, bool ethernet,
                                    const VerbsOptions& options) {
  const int wanted = options.gid_index >= 0 ? options.gid_index : ethernet ? -1 : 0;
  if (wanted >= 0) {
    for (const NicGid& gid : gids) {
      if (gid.index != wanted) continue;
      return GidChoice{
          gid, absl::StrCat(Words(gid), options.gid_index >= 0 ? ", as verbs.gid_index says" : "")};
    }
    return absl::NotFoundError(
        absl::StrCat("there is no GID with index ", wanted, " (verbs.gid_index): ", Table(gids)));
  }
  const GidKind kind = options.roce_version == 1 ? GidKind::kRoceV1 : GidKind::kRoceV2;
  const NicGid* best = nullptr;
  const auto rank = [&](const NicGid& gid) {
    return std::make_tuple(!IsUsable(gid), IsIpv4(gid.gid) == options.ipv6, gid.kind != kind,
                           gid.index);
  };
  const std::optional<GidRange>& range = options.address_range;
  for (const NicGid& gid : gids) {
    if (IsUnset(gid.gid) || (range.has_value() && !range->Holds(gid.gid))) continue;
    if (best == nullptr || rank(gid) < rank(*best)) best = &gid;
  }
  if (best == nullptr && range.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("no GID within ", range->text, " (verbs.address_range): ", Table(gids)));
  }
  if (best == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "no usable GID: ", Table(gids),
        "; has the port's network interface an address, and does this container see it?"));
  }
  return GidChoice{*best, Words(*best)};
}

}  // namespace weft::net
