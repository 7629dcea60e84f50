// What `weft-bw link` is asked to do. Names follow perftest, then ucx_perftest, where they mean the
// same.
#ifndef WEFT_TOOLS_BW_LINK_OPTIONS_H_
#define WEFT_TOOLS_BW_LINK_OPTIONS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
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

// What is done, the same on every rank.
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
  // Whose steps are replayed: all_reduce, all_gather, reduce_scatter, broadcast or send_recv.
  CollectiveKind collective = CollectiveKind::kAllReduce;
  int channels = 2;
  Bytes channel_bytes = MiB(4);  // NCCL_BUFFSIZE

  nlohmann::json ToJson() const;
  static absl::StatusOr<Load> FromJson(const nlohmann::json& json);
};

inline constexpr int kStandardPort = 18515;  // perftest's

struct Options {
  Load load;
  int ranks = 0;     // above 0: start them here
  std::string host;  // of the server; empty: the job that the environment names, else be the server
  int port = kStandardPort;
  std::string listen = "127.0.0.1";  // the server's address for its client
  // "@FILE" with what server and client share; empty: WEFT_JOB_SECRET, or the server draws it.
  std::string key;
  bool gbits = false;
  bool lanes = false;                 // a row a lane after every size
  double min_gbps = 0, max_usec = 0;  // limits; 0: none
  std::string json;                   // a file, "-": standard output and no table
  Settings settings{LibrarySettings()};
};

// As a sorted-out command line, or the exit status of a program that is done. `argv` begins with
// the word "link".
struct Parsed {
  Options options;
  int exit_status = -1;  // -1: go on
};
Parsed ParseCommandLine(int argc, char** argv);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_OPTIONS_H_
