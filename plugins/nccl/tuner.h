// What the tuner answers to NCCL: algorithm and protocol by the planner's costs for the job's
// network, in place of NCCL's own constants. tuner_tables.cc adapts it to each version of NCCL's
// table.
//
// Every rank must answer alike, and a tuner cannot ask the others: the answer is a pure function of
// the communicator's ranks and hosts and of the network that nccl.fabric describes, a file that all
// hosts need alike (its checksum is logged), or, with nccl.tuner=devices, of this host's devices,
// which the user says are alike on all hosts. Whatever is unknown or wrong leaves NCCL's own
// choice; no call ever fails.
#ifndef WEFT_PLUGINS_NCCL_TUNER_H_
#define WEFT_PLUGINS_NCCL_TUNER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "collectives/planner/nccl_times.h"
#include "plugins/nccl/abi/tuner.h"

namespace weft::nccl {

// One communicator's. Thread-safe.
class Tuner {
 public:
  // Never null; logs one line: what it goes by, or why it leaves NCCL's choice. `log` may be null.
  static std::unique_ptr<Tuner> Create(size_t ranks, size_t nodes, abi::LogFunction log);

  // Fills the entries of the rings, trees and PAT that are available (>= 0) in
  // `costs`[algorithms][protocols] with predicted times in microseconds, scaled so that the least
  // of them is NCCL's own least of them: what the planner has no model of, NVLS and CollNet, keeps
  // its place. Leaves all as it is where that is NCCL's own choice. Logs one line of each size: the
  // choice, that of NCCL's own costs, and the predicted times of both.
  void FillCosts(abi::Collective collective, size_t bytes, float* costs, int algorithms,
                 int protocols);
  // Before there were tables: writes both, or neither. Only what works on all hardware, and nothing
  // where NCCL_ALGO or NCCL_PROTO is set.
  void Choose(abi::Collective collective, size_t bytes, int* algorithm, int* protocol);

 private:
  // By NCCL's numbers of algorithms and protocols, in microseconds; < 0: no such thing.
  using Times = std::array<std::array<float, abi::kTunerProtocols>, abi::kTunerAlgorithms>;

  explicit Tuner(abi::LogFunction log) : log_(log) {}
  // The reason, for people; a failure's message says why NCCL's choice stays.
  absl::StatusOr<std::string> Open(size_t ranks, size_t nodes);
  // Nullopt where the planner has no answer. The answer is a copy, because another thread's
  // question may remove the one that is kept.
  std::optional<Times> TimesOf(abi::Collective collective, size_t bytes);
  // Logs `what` for this collective and size, which TimesOf() has answered, unless it has already.
  void Say(abi::Collective collective, size_t bytes, absl::string_view what);
  void Log(unsigned long flags, absl::string_view text) const;

  abi::LogFunction log_;
  std::optional<collectives::planner::NcclTimes> times_;  // nothing: NCCL's choice stays
  std::mutex mutex_;
  struct Answer {
    Times times;
    bool logged = false;
  };
  std::map<std::pair<abi::Collective, size_t>, Answer> known_;  // with mutex_
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_TUNER_H_
