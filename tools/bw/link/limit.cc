#include "tools/bw/link/limit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::link_bw {
namespace {

constexpr double kLinkShare = 0.9;     // of goodput in what the wire carries
constexpr double kLinkShareMax = 1.1;  // above it, the interface says what is not true
constexpr double kCoreShare = 0.85;
constexpr double kBusyShare = 0.85;
constexpr double kCopyShare = 0.5;
constexpr double kMost = 0.5;
constexpr double kKernelBusyShare = 0.8;

std::string Where(const RankUse& rank) {
  return absl::StrCat("rank ", rank.rank, rank.host.empty() ? "" : absl::StrCat(" on ", rank.host));
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", share * 100); }

Limit OfThread(const RankUse& rank) {
  if (rank.core < kCoreShare && !rank.sleeps) {
    return {"core",
            absl::StrCat("limited by the cores of ", Where(rank), ": its thread has work ",
                         Percent(rank.busy), " of the time, but got only ", Percent(rank.core),
                         " of a core, and lost it ", rank.preempted, " times")};
  }
  const double moved = std::max(rank.sent, rank.received);
  if (rank.copy > 0 && moved >= kCopyShare * rank.copy) {
    return {"copy",
            absl::StrCat("limited by memory copies at ", Where(rank), ": its thread is busy ",
                         Percent(rank.busy), " of the time and moves ",
                         absl::StrFormat("%.2f", moved / 1e9), " GB/s; one core there copies ",
                         absl::StrFormat("%.2f", rank.copy / 1e9), " GB/s")};
  }
  return {"thread", absl::StrCat("limited by the CPU of the progress thread at ", Where(rank),
                                 ": busy ", Percent(rank.busy), " of the time, ",
                                 Percent(rank.kernel), " of it in the kernel")};
}

// The limit of the busiest lane.
Limit OfLane(const LaneUse& lane) {
  const std::string where =
      absl::StrCat(lane.name, " (rank ", lane.from, " to rank ", lane.to, ")");
  if (lane.peer_limited >= kMost) {
    return {"peer", absl::StrCat("limited by the receive window of rank ", lane.to, " at ", where,
                                 ": full ", Percent(lane.peer_limited),
                                 " of the time that data was on its way")};
  }
  if (lane.buffer_limited >= kMost) {
    return {"buffer", absl::StrCat("limited by the send buffer of rank ", lane.from, " at ", where,
                                   ": full ", Percent(lane.buffer_limited),
                                   " of the time that data was on its way; see tcp.buffer_bytes")};
  }
  return {"network",
          absl::StrCat("limited by the network at ", where, ": data was on its way ",
                       Percent(lane.busy), " of the time, round trips of ",
                       absl::StrFormat("%.0f us (p99 %.0f us)", lane.rtt_p50_us, lane.rtt_p99_us),
                       ", ", std::max<int64_t>(lane.retransmissions, 0), " packets sent again")};
}

}  // namespace

Limit FindLimit(const std::vector<RankUse>& ranks, const std::vector<LaneUse>& lanes, int depth) {
  const RankUse* busiest = nullptr;
  for (const RankUse& rank : ranks) {
    const double share = rank.link > 0 ? std::max(rank.sent, rank.received) / rank.link : 0;
    if (share >= kLinkShare && share <= kLinkShareMax) {
      return {"link",
              absl::StrCat("limited by the link speed of ", rank.device, " at ", Where(rank), ": ",
                           Percent(share), " of its ", absl::StrFormat("%.4g", rank.link * 8 / 1e9),
                           " Gb/s is payload")};
    }
    if (busiest == nullptr || rank.busy > busiest->busy) busiest = &rank;
  }
  if (busiest != nullptr && busiest->busy >= kBusyShare) return OfThread(*busiest);
  const auto lane = std::max_element(lanes.begin(), lanes.end(),
                                     [](const auto& a, const auto& b) { return a.busy < b.busy; });
  if (lane != lanes.end() && lane->busy >= kKernelBusyShare) return OfLane(*lane);
  return {"window",
          absl::StrCat("limited by the window: ", depth,
                       " messages under way do not cover the round trip, no thread is busy more "
                       "than ",
                       Percent(busiest == nullptr ? 0 : busiest->busy),
                       " of the time; try a larger -t or -s")};
}

}  // namespace weft::link_bw
