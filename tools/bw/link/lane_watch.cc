#include "tools/bw/link/lane_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/median.h"

namespace weft::link_bw {
namespace {

constexpr int64_t kLookEvery = 10'000'000;  // ns

double ShareOf(absl::Duration part, absl::Duration whole) {
  return whole > absl::ZeroDuration() ? absl::FDivDuration(part, whole) : 0;
}

}  // namespace

double PercentileOf(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  const auto at = std::min(static_cast<size_t>(std::max(rank - 1, 0.0)), values.size() - 1);
  return NthValue(std::move(values), at);
}

LaneWatch::Reports LaneWatch::Read() const {
  Reports reports;
  for (const auto& [peer, link] : links_.sends()) reports[peer] = link->Lanes();
  return reports;
}

void LaneWatch::Sample(const Reports& reports) {
  for (const auto& [peer, lanes] : reports) {
    for (const net::LaneReport& lane : lanes) {
      if (lane.rtt.has_value()) {
        trips_us_[{peer, lane.name}].push_back(absl::ToDoubleMicroseconds(*lane.rtt));
      }
    }
  }
}

void LaneWatch::Start() {
  trips_us_.clear();
  started_ = looked_ = links_.now();
  start_ = Read();
}

void LaneWatch::Look(int64_t now) {
  if (now - looked_ < kLookEvery) return;
  looked_ = now;
  Sample(Read());
}

std::vector<LaneUse> LaneWatch::Stop() {
  std::vector<LaneUse> uses;
  const Reports end = Read();
  Sample(end);
  const absl::Duration window = absl::Nanoseconds(std::max<int64_t>(links_.now() - started_, 1));
  for (const auto& [peer, lanes] : end) {
    for (const net::LaneReport& lane : lanes) {
      // A lane that was replaced meanwhile begins at nothing.
      net::LaneReport before;
      for (const net::LaneReport& one : start_[peer]) {
        if (one.name == lane.name) before = one;
      }
      LaneUse use;
      use.from = rank_;
      use.to = peer;
      use.name = lane.name;
      use.source_port = lane.source_port;
      use.bytes = static_cast<int64_t>(lane.bytes - before.bytes);
      if (lane.retransmissions.has_value()) {
        use.retransmissions =
            static_cast<int64_t>(*lane.retransmissions - before.retransmissions.value_or(0));
      }
      if (const auto& trips = trips_us_[{peer, lane.name}]; !trips.empty()) {
        use.rtt_p50_us = PercentileOf(trips, 50);
        use.rtt_p99_us = PercentileOf(trips, 99);
      }
      if (lane.busy.has_value()) {
        const auto grown = [](auto now, auto then) {
          return now.value_or(absl::ZeroDuration()) - then.value_or(absl::ZeroDuration());
        };
        const absl::Duration busy = grown(lane.busy, before.busy);
        use.busy = ShareOf(busy, window);
        use.peer_limited = ShareOf(grown(lane.peer_limited, before.peer_limited), busy);
        use.buffer_limited = ShareOf(grown(lane.buffer_limited, before.buffer_limited), busy);
      }
      uses.push_back(std::move(use));
    }
  }
  return uses;
}

}  // namespace weft::link_bw
