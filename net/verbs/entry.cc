#include "net/verbs/entry.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace weft::net {
namespace {

// As it lies on the wire.
struct PackedTerms {
  uint16_t version;
  uint16_t ring_slots;
  uint8_t ethernet, roce_version, ipv6, zero;
};
static_assert(sizeof(PackedTerms) == 8);
constexpr size_t kDeviceTextMax = 64;

}  // namespace

std::string EncodeControl(const Control& control, absl::string_view text) {
  text = text.substr(0, kControlTextMax);
  std::string out(sizeof control + text.size(), '\0');
  std::memcpy(out.data(), &control, sizeof control);
  if (!text.empty()) std::memcpy(out.data() + sizeof control, text.data(), text.size());
  return out;
}

absl::StatusOr<Control> DecodeControl(absl::string_view bytes, std::string* text) {
  Control out;
  if (bytes.size() < sizeof out || bytes.size() > sizeof out + kControlTextMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a control of the verbs link of ", bytes.size(), " bytes"));
  }
  std::memcpy(&out, bytes.data(), sizeof out);
  text->assign(bytes.data() + sizeof out, bytes.size() - sizeof out);
  const bool sound = out.magic == kControlMagic && out.version == kVerbsVersion &&
                     out.kind >= ControlKind::kHello && out.kind <= ControlKind::kPaths &&
                     out.lane < kVerbsLanesMax && out.rail < kVerbsRailsMax &&
                     out.rails <= kVerbsRailsMax && out.lanes <= kVerbsLanesMax &&
                     out.queue_pair < 1u << 24 && out.psn < 1u << 24 &&
                     out.eager_max <= kEagerBytesMax;
  if (sound) return out;
  return absl::InvalidArgumentError(absl::StrCat(
      "no control of a verbs link: magic ", absl::Hex(out.magic), ", version ", out.version,
      ", kind ", static_cast<int>(out.kind), ", lane ", out.lane, ", rail ", out.rail));
}

std::string VerbsTerms::Encode() const {
  const PackedTerms packed{
      version, ring_slots, static_cast<uint8_t>(ethernet), roce_version, static_cast<uint8_t>(ipv6),
      0};
  std::string out(sizeof packed, '\0');
  std::memcpy(out.data(), &packed, sizeof packed);
  return out + device.substr(0, kDeviceTextMax);
}

absl::StatusOr<VerbsTerms> VerbsTerms::Decode(absl::string_view bytes) {
  PackedTerms packed;
  if (bytes.size() < sizeof packed || bytes.size() > sizeof packed + kDeviceTextMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes of terms of a verbs link"));
  }
  std::memcpy(&packed, bytes.data(), sizeof packed);
  VerbsTerms out;
  out.version = packed.version;
  out.ring_slots = packed.ring_slots;
  out.ethernet = packed.ethernet != 0;
  out.roce_version = packed.roce_version;
  out.ipv6 = packed.ipv6 != 0;
  out.device = absl::CHexEscape(bytes.substr(sizeof packed));
  return out;
}

absl::Status VerbsTerms::Check(const VerbsTerms& other) const {
  const auto differ = [&](absl::string_view what, const auto& theirs, const auto& ours,
                          absl::string_view advice) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, " differ: ", theirs, " at ", other.device, ", ", ours, " at ", device, "; ", advice));
  };
  if (version != other.version) {
    return differ("versions of the verbs protocol", other.version, version,
                  "run the same Weft on every rank");
  }
  if (ring_slots != other.ring_slots) {
    return differ("rings", other.ring_slots, ring_slots, "run the same Weft on every rank");
  }
  if (ethernet != other.ethernet) {
    const char* names[] = {"InfiniBand", "Ethernet"};
    return differ("link layers", names[other.ethernet ? 1 : 0], names[ethernet ? 1 : 0],
                  "choose devices of one network with verbs.devices");
  }
  if (roce_version != other.roce_version) {
    return differ("RoCE versions of the GIDs", other.roce_version, roce_version,
                  "set verbs.gid_index or verbs.roce_version");
  }
  if (ipv6 != other.ipv6) {
    const char* names[] = {"IPv4", "IPv6"};
    return differ("address families of the GIDs", names[other.ipv6 ? 1 : 0], names[ipv6 ? 1 : 0],
                  "set verbs.family or verbs.gid_index");
  }
  return absl::OkStatus();
}

}  // namespace weft::net
