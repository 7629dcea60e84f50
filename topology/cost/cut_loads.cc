#include "topology/cost/cut_loads.h"

#include <algorithm>
#include <tuple>

namespace weft::topology {

CutLoads::CutLoads(const CostModel& model, size_t traffic)
    : model_(model),
      traffic_(model.flows_[traffic]),
      // One more than there are: what no level joins would land there (Create refuses it).
      levels_(static_cast<size_t>(model.levels_) + 1),
      flows_(2 * model.upper_.size()),
      bytes_(flows_.size()),
      at_level_(traffic_.flows_of_group.size() * levels_),
      bytes_at_(levels_) {}

double CutLoads::LatencyOf(size_t group) const {
  int32_t count = traffic_.flows_of_group[group];
  if (count == 0) return 0;
  double sum = 0;
  for (size_t level = 1; level + 1 < levels_; ++level) {
    sum += at_level_[group * levels_ + level] * model_.alpha_[level];
  }
  return traffic_.network_steps * sum / count;
}

double CutLoads::Latency() const {
  double most = 0;
  for (size_t group = 0; group < traffic_.flows_of_group.size(); ++group) {
    most = std::max(most, LatencyOf(group));
  }
  return most;
}

std::vector<CutLoad> CutLoads::Largest(size_t count) const {
  std::vector<std::pair<double, size_t>> order;
  for (size_t cut = 0; cut < flows_.size(); ++cut) {
    if (flows_[cut] > 0) order.emplace_back(-Seconds(cut), cut);
  }
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end());
  std::vector<CutLoad> largest;
  for (size_t i = 0; i < count; ++i) {
    auto [seconds, cut] = order[i];
    largest.push_back({model_.upper_[cut / 2], cut % 2 == 0, flows_[cut], Bytes(bytes_[cut]),
                       absl::Seconds(-seconds)});
  }
  return largest;
}

std::vector<int64_t> CutLoads::flows_at() const {
  std::vector<int64_t> sum(levels_ - 1, 0);
  for (size_t i = 0; i < at_level_.size(); ++i) {
    if (i % levels_ < sum.size()) sum[i % levels_] += at_level_[i];
  }
  return sum;
}

std::vector<Bytes> CutLoads::bytes_at() const {
  std::vector<Bytes> bytes;
  for (size_t level = 0; level + 1 < levels_; ++level) bytes.emplace_back(bytes_at_[level]);
  return bytes;
}

}  // namespace weft::topology
