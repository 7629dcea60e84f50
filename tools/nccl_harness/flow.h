// One direction of one connection, driven as NCCL's progress thread does: posts what there is room
// for, tests what is in flight in any order, checks what arrives. Used by one thread.
#ifndef WEFT_TOOLS_NCCL_HARNESS_FLOW_H_
#define WEFT_TOOLS_NCCL_HARNESS_FLOW_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/random.h"
#include "tools/nccl_harness/plan.h"
#include "tools/nccl_harness/rank.h"

namespace weft::harness {

inline constexpr int kWindow = 8;  // NCCL_STEPS: what NCCL keeps in flight on a connection

// Memory that is registered with one communicator, with guards around each of its slots.
class Slots {
 public:
  Slots(Rank& rank, void* comm, size_t slot_bytes, size_t count);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  absl::Status Register();
  std::byte* data(size_t slot) { return memory_.get() + slot * stride_ + kGuardBytes; }
  void* memory_handle() const { return handle_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t Take();  // kNone: none is free
  void Give(size_t slot) { free_.push_back(slot); }
  size_t free() const { return free_.size(); }
  // Guards of the slot, and what is behind `posted` of it: 0 when untouched.
  size_t CountTouched(size_t slot, size_t posted) const;
  void Prepare(size_t slot, size_t posted);  // writes the guards
  static constexpr size_t kNone = ~size_t{0};

 private:
  static constexpr size_t kGuardBytes = 128;
  Rank& rank_;
  void* comm_;
  const size_t slot_bytes_, stride_, count_;
  std::unique_ptr<std::byte[]> memory_;
  void* handle_ = nullptr;
  std::vector<size_t> free_;
};

// How many slots of this size may be had within --memory, and within what every version of regMr
// can be told.
size_t SlotCount(size_t slot_bytes, size_t wanted, size_t memory_max);

class Sender {
 public:
  Sender(Rank& rank, End& end, const Plan& plan, uint64_t seed);
  absl::Status Open() { return slots_.Register(); }
  // One turn. Aborted: a contract is broken and nothing more can be learnt here.
  absl::Status Turn() { return TurnUpTo(plan_.messages.size()); }
  absl::Status TurnUpTo(size_t posted);  // posts no more than these
  size_t posted() const { return next_; }
  bool finished() const { return done_ == plan_.messages.size(); }
  size_t done() const { return done_; }
  std::string Describe() const;  // what it waits for
  void set_blame(Contract contract) { blame_ = contract; }
  void set_window(size_t window) { window_ = window; }  // at most 4 * kWindow in flight
  void set_refill(bool refill) {
    refill_ = refill;
  }  // false: for measuring, buffers stay as they are

 private:
  struct Flight {
    size_t message = 0, slot = 0;
    void* request = nullptr;
  };
  absl::Status Post(size_t limit);
  absl::Status Test(Flight& flight, bool* done);

  Rank& rank_;
  End& end_;
  const Plan& plan_;
  Random random_;
  Slots slots_;
  Contract blame_ = Contract::kTransientIsSuccess;
  bool refill_ = true;
  size_t window_ = static_cast<size_t>(4) * kWindow;
  std::vector<bool> filled_;
  size_t next_ = 0, done_ = 0;
  size_t pending_slot_ = Slots::kNone;  // filled, and not taken yet
  std::vector<Flight> flights_;
};

class Receiver {
 public:
  Receiver(Rank& rank, End& end, const Plan& plan, uint64_t seed);
  absl::Status Open() { return slots_.Register(); }
  absl::Status Turn();
  bool finished() const { return done_ == plan_.groups.size(); }
  size_t done() const { return done_; }
  std::string Describe() const;
  void set_blame(Contract contract) { blame_ = contract; }
  void set_check(bool check) { check_ = check; }  // false: for measuring
  uint64_t wrong_bytes() const { return wrong_bytes_; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Flight {
    size_t group = 0;
    std::vector<size_t> slots;
    void* request = nullptr;
    bool hinted = false;  // NCCL permitted to complete before the data is there
  };
  absl::Status Post();
  absl::Status Test(Flight& flight, bool* done);
  absl::Status Finish(Flight& flight, const int* sizes);
  void CheckMessage(const Flight& flight, size_t place, size_t size);
  void Blame(const Flight& flight, size_t place, size_t size, size_t wrong);

  Rank& rank_;
  End& end_;
  const Plan& plan_;
  Random random_;
  Slots slots_;
  Contract blame_ = Contract::kTransientIsSuccess;
  bool check_ = true;
  size_t next_ = 0, done_ = 0;
  uint64_t wrong_bytes_ = 0, bytes_ = 0;
  int late_waits_left_ = 2;  // what is wrong again and again is not waited for again
  std::vector<Flight> flights_;
};

// Registers memory with all communicators and deregisters it, as the service thread may at any
// time.
absl::Status RegisterMeanwhile(Rank& rank, std::vector<End>& ends);

// Runs them all on a progress thread of their own, while this thread registers and deregisters
// memory with the same communicators, until all have finished. Breaks kCompletes, or `stuck`, when
// nothing completes for --timeout.
absl::Status RunFlows(Rank& rank, std::vector<End>& ends,
                      std::vector<std::unique_ptr<Sender>>& senders,
                      std::vector<std::unique_ptr<Receiver>>& receivers,
                      Contract stuck = Contract::kCompletes);

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_FLOW_H_
