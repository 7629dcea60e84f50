// The works that a communicator hands to the engine: collectives, messages, and calls that failed
// before they began.
#ifndef WEFT_COLLECTIVES_WORKS_H_
#define WEFT_COLLECTIVES_WORKS_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "collectives/buffer_check.h"
#include "collectives/endpoint_impl.h"
#include "collectives/multicast.h"
#include "collectives/operation.h"
#include "collectives/planner/planner.h"

namespace weft::collectives {

// A plan, and runners of it that are at rest. One for each kind of call of a communicator.
struct PlanEntry {
  CollectiveSpec spec;
  planner::Plan choice;
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const MulticastPlan> multicast;  // null: by links
  Descriptor called;   // by the last call, under the communicator's mutex
  uint64_t check = 0;  // of it
  std::mutex mutex;
  std::vector<std::unique_ptr<Runner>> idle;

  std::unique_ptr<Runner> Take() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!idle.empty()) {
      auto taken = std::move(idle.back());
      idle.pop_back();
      return taken;
    }
    if (multicast != nullptr) return std::make_unique<MulticastRun>(multicast, plan);
    return std::make_unique<Execution>(plan);
  }
  void Give(std::unique_ptr<Runner> runner) {
    std::lock_guard<std::mutex> lock(mutex);
    idle.push_back(std::move(runner));
  }
};

class CollectiveWork final : public Operation {
 public:
  CollectiveWork(EndpointImpl* endpoint, std::shared_ptr<Group> group, int64_t start_ns,
                 std::shared_ptr<PlanEntry> entry, const Invocation& invocation, uint32_t sequence,
                 DataType type, ReduceOp op)
      : Operation(endpoint, std::move(group), start_ns),
        entry_(std::move(entry)),
        runner_(entry_->Take()),
        invocation_(invocation),
        sequence_(sequence),
        type_(type),
        op_(op) {}

  void Begin(Peers& peers) override { runner_->Begin(invocation_, peers); }
  bool Advance(Peers& peers, uint64_t) override { return runner_->Advance(peers, window); }
  bool complete() const override { return runner_->done(); }
  absl::Status failure(int* peer) const override {
    *peer = runner_->failed_peer();
    return runner_->status();
  }
  Outlook outlook() const override { return has_begun ? runner_->outlook() : Outlook::kLinks; }
  bool AwaitsLink() const override { return has_begun && runner_->AwaitsLink(); }
  bool WaitsOnCpuOfPeer(int cpu) override { return has_begun && runner_->WaitsOnCpuOfPeer(cpu); }
  bool AtRest() override { return runner_->AtRest(); }
  bool Holds(int peer) override { return runner_->Holds(peer); }
  bool Needs(int peer) const override { return runner_->Needs(peer); }
  PostedCount Posted(int peer) override { return runner_->Posted(peer); }
  std::string Describe() const override;
  bool has_sequence() const override { return true; }
  uint32_t sequence() const override { return sequence_; }
  std::string algorithm() const override { return entry_->choice.ToText(); }
  std::string why() const override { return entry_->choice.why; }
  void Release() override {
    runner_->Rest();
    entry_->Give(std::move(runner_));
  }
  absl::Status Deliver() override {
    return check_ == nullptr ? absl::OkStatus() : check_->Finish();
  }
  // Before it starts: it works on the copies of `check`.
  void Verify(std::unique_ptr<BufferCheck> check) {
    invocation_.input = check->input(), invocation_.output = check->output();
    check_ = std::move(check);
  }
  CallRecord ToRecord() const override;

 private:
  std::shared_ptr<PlanEntry> entry_;
  std::unique_ptr<Runner> runner_;
  Invocation invocation_;
  std::unique_ptr<BufferCheck> check_;  // null: the buffers are the caller's
  uint32_t sequence_;
  DataType type_;
  ReduceOp op_;
};

class MessageWork final : public Operation {
 public:
  MessageWork(EndpointImpl* endpoint, std::shared_ptr<Group> group, int64_t start_ns, bool sends,
              void* data, size_t bytes, int peer, uint32_t tag)  // peer -1: receives from any rank
      : Operation(endpoint, std::move(group), start_ns),
        sends_(sends),
        data_(data),
        bytes_(bytes),
        peer_(peer),
        tag_(tag) {}

  void Begin(Peers& peers) override;
  bool Advance(Peers& peers, uint64_t turn) override;
  bool AwaitsLink() const override { return peer_ >= 0 && !complete_ && !other().HasLink(sends_); }
  bool complete() const override { return complete_; }
  absl::Status failure(int* peer) const override {
    *peer = peer_;
    return status_;
  }
  bool AtRest() override { return !posted_ || request_.done(); }
  bool Holds(int peer) override { return peer == peer_ && !AtRest(); }
  bool Needs(int peer) const override;
  PostedCount Posted(int peer) override {
    return group().posted == nullptr ? PostedCount() : group().posted->Of(peer, tag_);
  }
  uint32_t tag() const override { return tag_; }
  // Whoever holds the work may free its buffer.
  void Release() override { region_ = net::Region(); }
  std::string Describe() const override;
  std::optional<uint32_t> open_tag() const override {
    return peer_ < 0 ? std::optional<uint32_t>(tag_) : std::nullopt;
  }
  void Choose(Peers& peers, int peer) override;
  void Remind(Peers& peers, int64_t now_ns) override;
  bool has_sequence() const override { return false; }
  uint32_t sequence() const override { return 0; }
  GroupRank source() const override { return GroupRank(sends_ ? -1 : peer_); }
  CallRecord ToRecord() const override;
  absl::Status Deliver() override {
    return check_ == nullptr ? absl::OkStatus() : check_->Finish();
  }
  // Before it starts: it works on the copies of `check`.
  void Verify(std::unique_ptr<BufferCheck> check) {
    data_ = sends_ ? const_cast<void*>(check->input()) : check->output();
    check_ = std::move(check);
  }

 private:
  Peer& other() const { return *group().peers[static_cast<size_t>(peer_)]; }
  bool Post(Peers& peers, uint64_t turn);
  void Seek(Peers& peers);

  bool sends_;
  void* data_;
  size_t bytes_;
  int peer_;
  uint32_t tag_;
  std::unique_ptr<BufferCheck> check_;  // null: the buffer is the caller's
  net::Region region_;
  net::Request request_;
  bool posted_ = false, complete_ = false;
  int64_t seek_ns_ = 0, seek_pause_ns_ = 0;  // when to seek again, and how long it waited last
  absl::Status status_;
};

// A work that was over before it began.
class FinishedWork final : public Work {
 public:
  FinishedWork(absl::Status status, int64_t now_ns) : status_(std::move(status)), now_ns_(now_ns) {}
  bool done() const override { return true; }
  absl::Status Wait(absl::Duration) override { return status_; }
  absl::Status status() const override { return status_; }
  int64_t start_ns() const override { return now_ns_; }
  int64_t end_ns() const override { return now_ns_; }
  GroupRank source() const override { return GroupRank(); }

 private:
  absl::Status status_;
  int64_t now_ns_;
};

inline WorkPtr Finished(absl::Status status) {
  return std::make_shared<FinishedWork>(std::move(status), SystemClock::Nanoseconds());
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_WORKS_H_
