// The backend of whole transports: verbs, ucx, multipath. One domain for each NCCL communicator and
// device, made at its first connection.
#include <sodium.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/verbs/options.h"
#include "plugins/nccl/domain.h"

namespace weft::nccl {
namespace {

// Queue pairs of a connection on each port.
int64_t QueuePairs(const Settings& settings) {
  int64_t value = settings.Integer("verbs.queue_pairs");
  const char* nccl = std::getenv("NCCL_IB_QPS_PER_CONNECTION");
  int64_t given = 0;
  if (settings.IsDefault("verbs.queue_pairs") && nccl != nullptr &&
      absl::SimpleAtoi(nccl, &given) && given > 0) {
    value = given;
  }
  return value;
}

bool IsGiven(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && absl::string_view(value) != "-1";
}

class DomainBackend final : public Backend {
 public:
  DomainBackend(HandleTransport kind, const Settings& settings, std::vector<Device> devices)
      : kind_(kind), settings_(settings), devices_(std::move(devices)) {}

  HandleTransport transport() const override { return kind_; }
  const DeviceList& devices() const override { return devices_; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Scope& scope, int device) override {
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Domain> domain, Find(scope, device));
    std::lock_guard lock(domain->mutex());
    return domain->Listen();
  }

  absl::StatusOr<std::unique_ptr<SendConnection>> Connect(const Scope& scope, int device,
                                                          const Handle& handle,
                                                          absl::Time now) override {
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Domain> domain, Find(scope, device));
    std::lock_guard lock(domain->mutex());
    return domain->Connect(handle, devices_[device].name, now);
  }

  absl::StatusOr<int> Merge(const std::vector<int>& parts) override {
    std::lock_guard lock(mutex_);
    for (int part : parts) WEFT_RETURN_IF_ERROR(devices_.Check(part));
    if (parts.size() == 1 && !CanMerge(devices_[parts.front()]).ok()) return parts.front();
    WEFT_RETURN_IF_ERROR(CheckParts(parts));
    std::vector<Device> merged;
    for (int part : parts) merged.push_back(devices_[part]);
    Device device = MergedDevice(merged);
    device.parts = parts;
    return devices_.Add(std::move(device));
  }
  void ForgetMerged() override {
    std::lock_guard lock(mutex_);
    devices_.ForgetAdded();
  }
  void EndIdleProgress() override { idle_thread_.End(); }

  absl::Duration connect_timeout() const override {
    return settings_.Duration("transport.connect_timeout");
  }

  std::string Describe() const override {
    switch (kind_) {
      case HandleTransport::kVerbs:
        return absl::StrCat(QueuePairs(settings_), " queue pairs a connection and port, pieces of ",
                            settings_.ValueText("verbs.piece_min"), " to ",
                            settings_.ValueText("verbs.piece_max"));
      case HandleTransport::kUcx:
        return absl::StrCat(
            "pieces of ",
            settings_.ByteCount("ucx.piece_bytes").count() > 0
                ? settings_.ValueText("ucx.piece_bytes")
                : "the length that suits what UCX may use",
            ", UCX_TLS ",
            settings_.Text("ucx.tls").empty() ? "as UCX decides" : settings_.Text("ucx.tls"));
      default:
        return absl::StrCat(settings_.ValueText("multipath.paths"), " paths, policy ",
                            settings_.Text("multipath.policy"), ", controller ",
                            settings_.Text("multipath.controller"));
    }
  }

 private:
  absl::StatusOr<std::shared_ptr<Domain>> Find(const Scope& scope, int device) {
    std::lock_guard lock(mutex_);
    std::erase_if(domains_, [](const auto& one) { return one.second.expired(); });
    std::weak_ptr<Domain>& known = domains_[{scope, device}];
    if (std::shared_ptr<Domain> domain = known.lock()) return domain;
    WEFT_ASSIGN_OR_RETURN(Settings settings, SettingsOf(devices_[device], scope));
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Domain> domain,
                          Domain::Create(kind_, settings, idle_thread_));
    known = domain;
    return domain;
  }

  // The transport's settings, such that it uses this device and nothing that is planned by rank.
  absl::StatusOr<Settings> SettingsOf(const Device& device, const Scope& scope) const {
    Settings out = settings_;
    const auto set = [&](const char* name, const std::string& value) {
      return out.Set(name, value, "the plugin");
    };
    for (const char* name : {"tcp.listen_port", "multipath.port"}) {
      WEFT_RETURN_IF_ERROR(set(name, "0"));
    }
    for (const char* name : {"tcp.source_ports", "verbs.source_ports"}) {
      WEFT_RETURN_IF_ERROR(set(name, ""));
    }
    constexpr int64_t kRequests = int64_t{abi::kRequestsMax} * abi::kGroupedReceivesMax;
    WEFT_RETURN_IF_ERROR(
        set("transport.requests",
            absl::StrCat(std::max(kRequests, settings_.Integer("transport.requests")))));
    if (device.rail.empty()) {
      WEFT_RETURN_IF_ERROR(set("tcp.interface", absl::StrCat("=", device.name)));
    }
    if (kind_ == HandleTransport::kVerbs) {
      const auto rails = static_cast<int64_t>(std::max<size_t>(1, device.parts.size()));
      const int64_t lanes = std::min<int64_t>(net::kVerbsLanesMax, QueuePairs(settings_) * rails);
      WEFT_RETURN_IF_ERROR(set("verbs.devices", absl::StrCat("=", device.rail)));
      WEFT_RETURN_IF_ERROR(set("verbs.queue_pairs", absl::StrCat(lanes)));
      // As with NCCL's own transport, what the environment says goes before the communicator's.
      if (scope.traffic_class >= 0 && settings_.IsDefault("verbs.traffic_class") &&
          !IsGiven("NCCL_IB_TC")) {
        WEFT_RETURN_IF_ERROR(set("verbs.traffic_class", absl::StrCat(scope.traffic_class)));
      }
    }
    if (kind_ == HandleTransport::kUcx) {
      // UCX leaves loopback out; between processes of one host it takes shared memory.
      const std::string& name =
          device.rail.empty() && device.name != "lo" ? device.name : device.rail;
      WEFT_RETURN_IF_ERROR(set("ucx.net_devices", name));
    }
    return out;
  }

  absl::Status CanMerge(const Device& device) const {
    if (kind_ == HandleTransport::kMultipath) {
      return absl::UnimplementedError(
          "multipath does not merge interfaces: its paths are those of one, and NCCL spreads its "
          "channels over several by itself");
    }
    if (device.rail.empty()) {
      return absl::UnimplementedError(
          absl::StrCat(device.name, " is a network interface; RDMA ports can be merged"));
    }
    // NCCL (2.24 to 2.28 at least) puts a merged device beside its parts below a PCI device;
    // where there is none it loses the parts and the merged one, and fails.
    if (device.software) {
      return absl::UnimplementedError(
          absl::StrCat(device.name,
                       " is on no PCI bus, and NCCL cannot place a merged device of such; "
                       "WEFT_VERBS_MERGE_PORTS=true merges all ports before NCCL sees them"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckParts(const std::vector<int>& parts) const {
    if (parts.empty() || parts.size() > net::kVerbsRailsMax) {
      return absl::InvalidArgumentError(absl::StrCat(parts.size(), " devices in one; 1 to ",
                                                     net::kVerbsRailsMax, " are possible"));
    }
    for (int part : parts) {
      if (!devices_[part].parts.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(devices_[part].name, " is merged already"));
      }
      WEFT_RETURN_IF_ERROR(CanMerge(devices_[part]));
    }
    if (std::set<int>(parts.begin(), parts.end()).size() == parts.size()) return absl::OkStatus();
    return absl::InvalidArgumentError("a device stands twice in a merged one");
  }

  const HandleTransport kind_;
  const Settings settings_;
  DeviceList devices_;
  IdleProgressThread idle_thread_;
  std::mutex mutex_;
  std::map<std::pair<Scope, int>, std::weak_ptr<Domain>> domains_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateDomainBackend(HandleTransport kind,
                                                             const Settings& settings,
                                                             std::vector<Device> devices) {
  if (sodium_init() < 0) return absl::InternalError("libsodium finds no source of randomness");
  return std::make_unique<DomainBackend>(kind, settings, std::move(devices));
}

}  // namespace weft::nccl
