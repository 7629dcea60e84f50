// What an executor has to do so that its host runs what the driver's record says that it ought to.
// A pure function of the record and of what the host runs: told the same twice, an executor that
// has done it has nothing to do.
#ifndef WEFT_TOOLS_DRIVER_ORDERS_H_
#define WEFT_TOOLS_DRIVER_ORDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/driver/records.h"

namespace weft::driver {

struct LocalRank {
  int generation = -1;  // that was started last; -1: none
  bool alive = false;
};

struct LocalState {
  std::string host;
  int64_t incarnation = 0;
  int node = -1;  // whose ranks these are
  std::vector<LocalRank> ranks;
  int64_t test = 0;      // the self-test that was begun last
  int64_t replayed = 0;  // the replay's task that was begun last
  int64_t helped = 0;    // the other host's self-test that this one has helped with last
  bool helps = false;    // with that, at this moment
};

// This host's place in one group of a replay.
struct ReplayPart {
  int group = 0;  // of its phase
  int index = 0, size = 1;
  std::string master;  // the first host's address
};

enum class OrderKind : uint8_t {
  kKillAll,    // end all ranks that are alive, at once
  kEndAll,     // the job is over: end all ranks, with grace
  kTakeNode,   // `node` is this host's; no rank is alive
  kStartRank,  // local_rank in generation
  kKillRank,   // local_rank: a process of an earlier generation, or one that ought not to run
  kTest,       // begin self-test `test`, in which `helper` other hosts help
  kHelp,       // help with self-test `test` of another host, as its helper number `helper`
  kReplay,     // run task `test` of a replay, a process group after the other: `parts`
  kExit,       // with exit_status, once no rank is alive; text says why
};

struct Order {
  OrderKind kind = OrderKind::kKillAll;
  int node = -1;
  int local_rank = -1;
  int generation = 0;
  std::string last_end;  // of the process before
  int64_t test = 0;
  int helper = 0;
  std::vector<ReplayPart> parts;
  int exit_status = 0;
  std::string text;
};

// In the order in which they are to be done. Those that need processes to be gone come again, once
// they are. A help that was cut off would be a failed self-test of the host that it is for: a test
// or a replay of this host begins behind it.
std::vector<Order> OrdersFor(const DriverRecord& record, const LocalState& local);

// Exit statuses of an executor, beside its job's.
inline constexpr int kEvictedStatus = 3;   // its host is evicted
inline constexpr int kReplacedStatus = 4;  // another executor has its host's name

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_ORDERS_H_
