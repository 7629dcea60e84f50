// Writes what an endpoint does into this process's ring (base/records.h): each call and its end,
// and each link while it is used. Off or without a ring, every call does nothing.
#ifndef WEFT_COLLECTIVES_RECORDER_H_
#define WEFT_COLLECTIVES_RECORDER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/records.h"
#include "collectives/operation.h"
#include "collectives/peers.h"
#include "net/flow_watch.h"

namespace weft::collectives {

class Recorder {
 public:
  Recorder() = default;
  Recorder(const Settings& settings, absl::string_view job, int rank, int world_size);

  Records* records() const { return records_.get(); }
  // Says who belongs to the group. By any thread.
  void OnGroup(Group& group);
  // By any thread.
  void OnCall(const Operation& operation);
  void OnDone(const Operation& operation, int64_t end_ns, absl::StatusCode code);
  // A group of this process is lost, with or without a call of its own under way: its records are
  // to outlive it. By any thread.
  void MarkFailed() const {
    if (records_ != nullptr) records_->MarkFailed();
  }
  // Records the counters of all links, at most every 100 ms; called by the driver.
  void Sample(std::vector<Peer>& peers,
              absl::Span<const std::unique_ptr<net::Transport>> transports, int64_t now_ns);

 private:
  CallRecord RecordOf(const Operation& operation) const;
  void SampleLink(const net::Link* link, bool sends, const Peer& peer, net::FlowWatch& watch,
                  int64_t now_ns);

  std::unique_ptr<Records> records_;
  std::array<RecordName, kCallNames> calls_{};
  std::array<RecordName, kTransportsMax> transports_{};
  int64_t sample_ns_ = 0;  // when next
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RECORDER_H_
