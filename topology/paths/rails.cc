#include "topology/paths/rails.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace weft::topology {
namespace {

class Chooser {
 public:
  explicit Chooser(const Fabric& fabric) : fabric_(fabric) {}

  void Count(const TrafficFlow& flow) {
    auto bytes = static_cast<double>(flow.bytes.count());
    sent_[{flow.phase, flow.source}] += Seconds(flow.source, bytes);
    received_[{flow.phase, flow.target}] += Seconds(flow.target, bytes);
  }

  bool Choose(TrafficFlow& flow) const {
    double best = std::numeric_limits<double>::infinity();
    TrafficFlow chosen = flow;
    int count = std::max(fabric_.nics(flow.source.host), fabric_.nics(flow.target.host));
    for (int nic = 0; nic < count; ++nic) {
      TrafficFlow tried = flow;
      if (flow.source.nic == kAnyNic) tried.source.nic = nic;
      if (flow.target.nic == kAnyNic) tried.target.nic = nic;
      if (!Usable(tried.source) || !Usable(tried.target)) continue;
      double load = Load(tried);
      if (load < best * (1 - 1e-12)) {
        best = load;
        chosen = tried;
      }
    }
    flow = chosen;
    return best < std::numeric_limits<double>::infinity();
  }

 private:
  using Key = std::pair<uint32_t, Endpoint>;  // phase and NIC

  bool Usable(Endpoint endpoint) const {
    return endpoint.nic < fabric_.nics(endpoint.host) && Rate(endpoint) > 0;
  }
  double Rate(Endpoint endpoint) const {
    double rate = 0;
    for (LinkId link : fabric_.Ports(endpoint)) {
      if (fabric_.link(link).up) rate += fabric_.link(link).bandwidth.bytes_per_second();
    }
    return rate;
  }
  double Seconds(Endpoint endpoint, double bytes) const {
    double rate = Rate(endpoint);
    return rate > 0 ? bytes / rate : 0;
  }
  double Load(const TrafficFlow& flow) const {
    auto bytes = static_cast<double>(flow.bytes.count());
    auto at = [](const auto& loads, const Key& key) {
      auto found = loads.find(key);
      return found == loads.end() ? 0.0 : found->second;
    };
    return std::max(at(sent_, {flow.phase, flow.source}) + Seconds(flow.source, bytes),
                    at(received_, {flow.phase, flow.target}) + Seconds(flow.target, bytes));
  }

  const Fabric& fabric_;
  absl::flat_hash_map<Key, double> sent_, received_;  // seconds
};

}  // namespace

absl::Status ChooseRails(const Fabric& fabric, std::vector<TrafficFlow>& flows) {
  auto open = [](const TrafficFlow& flow) {
    return flow.source.nic == kAnyNic || flow.target.nic == kAnyNic;
  };
  Chooser chooser(fabric);
  std::vector<size_t> order;
  for (size_t i = 0; i < flows.size(); ++i) {
    if (open(flows[i])) {
      order.push_back(i);
    } else {
      chooser.Count(flows[i]);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return flows[a].bytes > flows[b].bytes; });
  for (size_t i : order) {
    if (!chooser.Choose(flows[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "flow ", i, ": ", fabric.node(flows[i].source.host).name, " and ",
          fabric.node(flows[i].target.host).name, " have no NIC of one number that is up"));
    }
    chooser.Count(flows[i]);
  }
  return absl::OkStatus();
}

}  // namespace weft::topology
