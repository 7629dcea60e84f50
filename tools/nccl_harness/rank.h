// One of the two ranks of a run, and its connections to the other: for each NCCL communicator a
// context, and one connection each way.
#ifndef WEFT_TOOLS_NCCL_HARNESS_RANK_H_
#define WEFT_TOOLS_NCCL_HARNESS_RANK_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/nccl_harness/channel.h"
#include "tools/nccl_harness/net_api.h"
#include "tools/nccl_harness/watch.h"

namespace weft::harness {

struct Options {
  std::string plugin = "weft";
  std::vector<int> versions;  // empty: all that the plugin exports
  bool threads = false;       // both ranks in one process
  int device = 0;
  int communicators = 2;
  int requests = 400;  // random messages of each connection
  size_t size_max = 1 << 20;
  size_t memory_max = 256 << 20;  // of one side of one connection
  uint64_t seed = 1;
  absl::Duration timeout = absl::Seconds(30);      // for anything to happen
  absl::Duration block_limit = absl::Seconds(5);   // of one call
  absl::Duration death_limit = absl::Seconds(30);  // until a peer's death is reported
  int connections = 0;                             // set up so many, and time it
  bool measure = false;
  size_t measure_min = 8, measure_max = 8 << 20;
  int measure_factor = 8;
  int iterations = 20;
  size_t chunk = 0;  // messages are cut into such pieces; 0: not cut
  bool verbose = false;
};

// A row of the table of bandwidths.
struct Measured {
  size_t bytes = 0;
  double half_round_trip_us = 0;
  double time_us = 0;  // of one message, many in flight
  uint64_t wrong = 0;  // bytes
};

// The end of one connection of one rank: it sends on `send` and receives on `receive`.
struct End {
  int number = 0;
  void* context = nullptr;
  void* listen = nullptr;
  void* send = nullptr;
  void* receive = nullptr;
  // As NCCL has it: the memory given to connect is the same at each call.
  std::array<unsigned char, nccl::abi::kHandleBytes> peer_handle{};
};

class Rank {
 public:
  Rank(int number, const Options& options, NetApi& api, Watch& watch, Channel& channel)
      : number_(number), options_(options), api_(api), watch_(watch), channel_(channel) {}

  int number() const { return number_; }
  const Options& options() const { return options_; }
  NetApi& api() { return api_; }
  Watch& watch() { return watch_; }
  Channel& channel() { return channel_; }
  std::vector<Measured>& measured() { return measured_; }
  std::vector<std::pair<std::string, double>>& figures() { return figures_; }

  // Both ranks are here. Cancelled when the other has ended.
  absl::Status Meet();
  // Logs `contract` as broken unless the call succeeded; then Aborted.
  absl::Status Need(nccl::abi::Result result, Contract contract, absl::string_view what);

  // `count` ends, each with a context of its own when `contexts`, else all with the first's.
  absl::StatusOr<std::vector<End>> Connect(int count, bool contexts = true);
  // Closes and finalizes; the order of the ends and of their sides differs by `order`.
  absl::Status Close(std::vector<End>& ends, int order = 0);

 private:
  absl::Status ListenAll(std::vector<End>& ends);
  absl::Status ConnectAll(std::vector<End>& ends);
  absl::Status TryConnect(End& end);
  absl::Status TryAccept(End& end);
  absl::Status CheckAnswer(nccl::abi::Result result, const char* call,
                           nccl::abi::DeviceHandle* handle);

  const int number_;
  const Options& options_;
  NetApi& api_;
  Watch& watch_;
  Channel& channel_;
  std::vector<Measured> measured_;
  std::vector<std::pair<std::string, double>> figures_;
};

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_RANK_H_
