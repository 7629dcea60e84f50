// The bootstrap of a run: the ranks of its processes, and what they exchange beside the traffic
// that is measured. The exchange goes through the rendezvous store, in a thread of its own, so that
// a rank which waits there still serves the transport.
#ifndef WEFT_TOOLS_BW_LINK_BOOTSTRAP_H_
#define WEFT_TOOLS_BW_LINK_BOOTSTRAP_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/job_environment.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

class Bootstrap {
 public:
  // Joins as a rank of the environment's job; else, with a host, as its client (rank 1 of 2); else
  // as the server (rank 0), which waits for a client.
  static absl::StatusOr<Bootstrap> Join(const Options& options);

  int rank() const { return environment_.rank.value(); }
  int ranks() const { return environment_.world_size; }
  const net::JobSecret& secret() const { return environment_.secret; }

  // The texts of all ranks, by rank. Every rank calls it as often as the others. Meanwhile serve()
  // is called again and again; it may sleep for a millisecond. The others are waited for by
  // store.timeout and `busy`: what they may have to do before, and this rank has not.
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& mine,
                                                     const std::function<void()>& serve,
                                                     absl::Duration busy = absl::ZeroDuration());
  absl::StatusOr<std::vector<nlohmann::json>> AllGatherJson(
      const nlohmann::json& mine, const std::function<void()>& serve,
      absl::Duration busy = absl::ZeroDuration());

 private:
  collectives::JobEnvironment environment_;
  collectives::JobStore store_;
  absl::Duration timeout_;
  std::string meeting_;
  int turn_ = 0;
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_BOOTSTRAP_H_
