// What a world (world.h) is drawn from, and its network: paths with delays, and their faults.
#ifndef WEFT_TESTS_NET_MULTIPATH_WORLD_NETWORK_H_
#define WEFT_TESTS_NET_MULTIPATH_WORLD_NETWORK_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/random.h"
#include "net/cc/registry.h"
#include "net/paths/policy.h"
#include "tests/net/multipath/world.h"

namespace weft::net::multipath {

enum Side : int { kToReceiver = 0, kToSender = 1 };

// A fault of one path in one direction.
struct Fault {
  absl::Time from, until;
  int path;       // -1: all
  int side;       // -1: both
  bool is_pause;  // held until `until`; else lost
};

struct WorldSetup {
  int paths, messages, restarts;
  bool weighs_paths;  // and all else by which paths are told apart
  uint32_t chunk, numbers, window;
  ControllerSpec controller;
  PolicyKind policy;
  double loss, reorder, duplicate, corrupt, mark, trim, too_long;
  int ack_every;
  bool by_credit;
  std::vector<Fault> faults;
  absl::Time healed;
  uint64_t size_max;

  static absl::Time Start() { return absl::UnixEpoch(); }
};

WorldSetup DrawWorld(Random& random);

struct Flying {
  std::string bytes;
  int side = 0;
  bool marked = false, trimmed = false;
};

class WorldNetwork {
 public:
  WorldNetwork(const WorldSetup& setup, Random& random, WorldResult& result)
      : setup_(setup), random_(random), result_(result) {}
  void DrawDelays();
  void Transmit(absl::Time now, const std::string& bytes, int side, int path);
  // When the next one arrives.
  absl::Time next() const {
    return flying_.empty() ? absl::InfiniteFuture() : flying_.begin()->first;
  }
  Flying Take();

 private:
  const WorldSetup& setup_;
  Random& random_;
  WorldResult& result_;
  std::vector<absl::Duration> path_delay_;
  std::multimap<absl::Time, Flying> flying_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_TESTS_NET_MULTIPATH_WORLD_NETWORK_H_
