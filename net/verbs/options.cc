#include "net/verbs/options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

// A setting of ours, or NCCL's of the same meaning where ours is at its default.
class Reader {
 public:
  Reader(const Settings& settings, const Environment& get) : settings_(settings), get_(get) {}

  // `unset`: the value by which NCCL says "not set" (-1 mostly); `low`..`high`: what NCCL's may be.
  absl::Status Integer(const char* name, const char* nccl, int low, int high, int* out) {
    *out = static_cast<int>(settings_.Integer(name));
    const char* text = settings_.IsDefault(name) && nccl != nullptr ? get_(nccl) : nullptr;
    if (text == nullptr || absl::string_view(text) == "-1" || *text == '\0') {
      return absl::OkStatus();
    }
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
      return absl::InvalidArgumentError(absl::StrCat(nccl, "=\"", text, "\" is not in ", low, "..",
                                                     high, "; or set ", EnvironmentName(name)));
    }
    *out = value;
    return absl::OkStatus();
  }

  // NCCL's is a number from 0 (off) to `high`; `disables`: 0 is on.
  absl::Status Switch(const char* name, const char* nccl, int high, bool disables, bool* out) {
    *out = settings_.Bool(name);
    const char* text = settings_.IsDefault(name) ? get_(nccl) : nullptr;
    if (text == nullptr || *text == '\0') return absl::OkStatus();
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 0 || value > high) {
      return absl::InvalidArgumentError(absl::StrCat(nccl, "=\"", text, "\" is not in 0..", high,
                                                     "; or set ", EnvironmentName(name)));
    }
    *out = (value != 0) != disables;
    return absl::OkStatus();
  }

  void Text(const char* name, const char* nccl, std::string* out, std::string* origin) {
    *out = settings_.Text(name);
    *origin = name;
    const char* text = settings_.IsDefault(name) ? get_(nccl) : nullptr;
    if (text != nullptr) *out = text, *origin = nccl;
  }

 private:
  const Settings& settings_;
  const Environment& get_;
};

}  // namespace

absl::Duration VerbsOptions::DetectionBound() const {
  const absl::Duration one = absl::Nanoseconds(4096) * static_cast<double>(int64_t{1} << timeout);
  return one * (retry_count + 1) * 4;
}

absl::StatusOr<VerbsOptions> ReadVerbsOptions(const Settings& settings, const Environment& get) {
  VerbsOptions out;
  Reader reader(settings, get);
  reader.Text("verbs.devices", "NCCL_IB_HCA", &out.devices, &out.devices_origin);
  const struct {
    const char* name;
    const char* nccl;
    int low, high;
    int* value;
  } integers[] = {
      {"verbs.gid_index", "NCCL_IB_GID_INDEX", 0, 255, &out.gid_index},
      {"verbs.roce_version", "NCCL_IB_ROCE_VERSION_NUM", 1, 2, &out.roce_version},
      {"verbs.queue_pairs", "NCCL_IB_QPS_PER_CONNECTION", 1, kVerbsLanesMax, &out.queue_pairs},
      {"verbs.traffic_class", "NCCL_IB_TC", 0, 255, &out.traffic_class},
      {"verbs.clear_to_send_traffic_class", "NCCL_IB_FIFO_TC", 0, 255,
       &out.clear_to_send_traffic_class},
      {"verbs.service_level", "NCCL_IB_SL", 0, 15, &out.service_level},
      {"verbs.timeout", "NCCL_IB_TIMEOUT", 1, 31, &out.timeout},
      {"verbs.retry_count", "NCCL_IB_RETRY_CNT", 0, 7, &out.retry_count},
      {"verbs.pkey_index", "NCCL_IB_PKEY", 0, 65535, &out.pkey_index},
  };
  for (const auto& one : integers) {
    WEFT_RETURN_IF_ERROR(reader.Integer(one.name, one.nccl, one.low, one.high, one.value));
  }
  out.ipv6 = settings.Text("verbs.family") == "ipv6";
  const char* family = settings.IsDefault("verbs.family") ? get("NCCL_IB_ADDR_FAMILY") : nullptr;
  if (family != nullptr && *family != '\0') {
    out.ipv6 = absl::string_view(family) == "AF_INET6";
    if (!out.ipv6 && absl::string_view(family) != "AF_INET") {
      return absl::InvalidArgumentError(
          absl::StrCat("NCCL_IB_ADDR_FAMILY=\"", family, "\"; right are AF_INET and AF_INET6"));
    }
  }
  std::string range, range_origin;
  reader.Text("verbs.address_range", "NCCL_IB_ADDR_RANGE", &range, &range_origin);
  if (!range.empty()) {
    absl::StatusOr<GidRange> parsed = ParseGidRange(range);
    if (!parsed.ok()) return Annotate(parsed.status(), range_origin);
    out.address_range = *std::move(parsed);
  }
  WEFT_RETURN_IF_ERROR(reader.Switch("verbs.relaxed_ordering", "NCCL_IB_PCI_RELAXED_ORDERING", 2,
                                     /*disables=*/false, &out.relaxed_ordering));
  WEFT_RETURN_IF_ERROR(reader.Switch("verbs.flush", "NCCL_GDR_FLUSH_DISABLE", 1,
                                     /*disables=*/true, &out.flush));
  const auto lines = [&](const char* name) {
    return static_cast<size_t>(settings.ByteCount(name).count()) / 128 * 128;
  };
  out.piece_min = lines("verbs.piece_min");
  out.piece_max = std::max(out.piece_min, lines("verbs.piece_max"));
  out.eager_max = static_cast<size_t>(settings.ByteCount("verbs.eager_max").count());
  out.source_ports = settings.Text("verbs.source_ports");
  out.mlx5dv_source_port = settings.Text("verbs.source_port_by") == "mlx5dv";
  const std::string& adaptive = settings.Text("verbs.adaptive_retransmission");
  if (adaptive != "leave") out.adaptive_retransmission = adaptive == "on";
  out.path_search = settings.Bool("verbs.path_search");
  out.stall_after = settings.Duration("verbs.stall_after");
  out.give_up_after = settings.Duration("verbs.give_up_after");
  return out;
}

}  // namespace weft::net
