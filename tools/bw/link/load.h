// What a measurement of links does, the same on every rank.
#ifndef WEFT_TOOLS_BW_LINK_LOAD_H_
#define WEFT_TOOLS_BW_LINK_LOAD_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "net/transport.h"
#include "topology/job/collective_kind.h"

namespace weft::link_bw {

enum class Test { kBandwidth, kLatency, kRate, kSteps };
const char* ToString(Test test);  // "bw", "lat", "rate", "steps"

enum class Pattern { kOneWay, kBothWays, kManyToOne, kOneToMany, kAllPairs };
const char* ToString(Pattern pattern);  // "one-way", ...

using topology::CollectiveKind;
using topology::ToString;

// kInvalidArgument names `option`, what there is, and the nearest name.
absl::StatusOr<Test> ParseTest(const char* option, const std::string& name);
absl::StatusOr<Pattern> ParsePattern(const char* option, const std::string& name);
absl::StatusOr<CollectiveKind> ParseCollective(const char* option, const std::string& name);
absl::StatusOr<net::TransportKind> ParseTransport(const char* option, const std::string& name);

inline constexpr absl::Duration kDurationMost = absl::Hours(24);  // of one size

struct Load {
  net::TransportKind transport = net::TransportKind::kTcp;
  Test test = Test::kBandwidth;
  Pattern pattern = Pattern::kOneWay;
  bool in_turn = false;  // one flow after the other
  int root = 0;          // of many-to-one, one-to-many and broadcast
  std::vector<Bytes> sizes;
  int64_t iterations = 0;  // of each flow, or operations of the steps; 0: for `duration`
  absl::Duration duration = absl::Seconds(2);  // of each size, without warm-up
  int depth = 16;                              // messages of a flow that are under way at once
  int post_list = 1;                           // posted together
  bool one_buffer = false;                     // all messages of a flow in the same memory
  bool check = false;                          // the data
  bool events = false;                         // sleep where there is nothing to do
  double percentile = 50;                      // of the latency, for limits
  // The call whose steps are replayed: all_reduce, all_gather, reduce_scatter, broadcast, send_recv
  CollectiveKind collective = CollectiveKind::kAllReduce;
  int channels = 2;
  Bytes channel_bytes = MiB(4);  // NCCL_BUFFSIZE

  nlohmann::json ToJson() const;
  static absl::StatusOr<Load> FromJson(const nlohmann::json& json);
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_LOAD_H_
