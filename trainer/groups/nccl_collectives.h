// A group's collectives and messages by NCCL, on tensors where they are: over the communicator's
// own stream of the GPU, so that they go on beside the computation, and the host waits for none of
// them.
//
// A call takes what the current stream has been given so far, and returns when NCCL has its work.
// Wait lets the current stream wait. What NCCL itself does not end with an error in time (a rank
// that is gone leaves the others' kernels waiting) a thread of the session ends: it aborts the
// communicators of all groups, and says why to the next that asks. It does the same where the job
// has lost a rank: the host, which the GPU would keep waiting, need not find that out.
//
// NCCL's user guide, "Using multiple NCCL communicators concurrently": all ranks give their GPUs
// the work of all communicators in one order, which the engine's groups do.
#ifndef WEFT_TRAINER_GROUPS_NCCL_COLLECTIVES_H_
#define WEFT_TRAINER_GROUPS_NCCL_COLLECTIVES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/cuda/device.h"
#include "collectives/data_type.h"

namespace weft::train {

class NcclCollectives;

// What the groups of a process share: the device, the first failure, and the thread that looks for
// one. Thread-safe.
class NcclSession {
 public:
  // Loads libweft-cuda.so, and selects GPU `device` for this thread. `timeout`: of a collective,
  // from the call to its end on the GPU. `health`: of the job, asked by the session's thread.
  // Errors: those of collectives::Device::Load.
  static absl::StatusOr<std::shared_ptr<NcclSession>> Open(int device, absl::Duration timeout,
                                                           std::function<absl::Status()> health);
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const collectives::Device& device() const { return device_; }
  // OK, or why all communicators were aborted: kDeadlineExceeded or kUnavailable, with the group
  // and the collective.
  absl::Status failure() const;
  // Aborts all communicators because of `why`, unless that was done before: nothing on the GPU
  // waits for other ranks any more.
  void Fail(const absl::Status& why);
  absl::StatusOr<std::string> MakeUniqueId() const;

 private:
  friend class NcclCollectives;
  NcclSession(const collectives::Device& device, int gpu, absl::Duration timeout,
              std::function<absl::Status()> health);
  // Calls NcclInit, which waits for the group's ranks: for at most `timeout_`, and while there is
  // no failure. A call that does not end by then is left to itself.
  absl::StatusOr<WeftNcclCommunicator*> MakeCommunicator(const std::string& group, int rank,
                                                         int size,
                                                         const std::string& unique_id) const;
  absl::Status Add(NcclCollectives* group);  // the failure, if there is one: then it is not added
  void Remove(NcclCollectives* group);
  void Watch();
  absl::Status Look() const;                 // with mutex_ held
  void FailLocked(const absl::Status& why);  // the same

  const collectives::Device device_;
  const int gpu_;
  const absl::Duration timeout_;
  const std::function<absl::Status()> health_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable ended_;
  bool ends_ = false;
  absl::Status failure_;
  std::set<NcclCollectives*> groups_;
  std::thread thread_;
};

// Used by one thread, but for what the session's thread does.
class NcclCollectives {
 public:
  // A collective under way on the GPU.
  struct Work {
    WeftEvent* begin = nullptr;  // of it on the group's stream
    WeftEvent* done = nullptr;
    const char* name = "";
  };
  // When something was on the GPU, by SystemClock.
  struct Span {
    const char* name = "";
    int64_t begin_ns = 0, end_ns = 0;
    int64_t exposed_ns = 0;  // of it, the time that the current stream waited for it
  };

  // Called by all ranks of a group of `size`, which it waits for; `unique_id` is of one of them.
  // `current`: the stream that computes; null is CUDA's default stream.
  static absl::StatusOr<std::unique_ptr<NcclCollectives>> Create(
      std::shared_ptr<NcclSession> session, std::string group, int rank, int size,
      const std::string& unique_id, WeftStream* current, bool high_priority);
  ~NcclCollectives();
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;

  // Counts are elements of a rank's part, but for AllReduce's, which are those of the whole. Memory
  // belongs to the call until Wait.
  absl::StatusOr<Work> ReduceScatter(const void* full, void* part, size_t count,
                                     collectives::DataType type, collectives::ReduceOp op);
  absl::StatusOr<Work> AllGather(const void* part, void* full, size_t count,
                                 collectives::DataType type);
  absl::StatusOr<Work> AllReduce(void* memory, size_t count, collectives::DataType type,
                                 collectives::ReduceOp op);
  // The parts for and from each rank: counts and first elements, by rank. `name` is a literal.
  absl::StatusOr<Work> Exchange(const char* name, const void* sent,
                                absl::Span<const size_t> sent_counts,
                                absl::Span<const size_t> sent_begins, void* received,
                                absl::Span<const size_t> received_counts,
                                absl::Span<const size_t> received_begins,
                                collectives::DataType type);
  // To rank `peer`, and from it, which both call in one order.
  absl::StatusOr<Work> Send(const void* memory, size_t count, int peer, collectives::DataType type);
  absl::StatusOr<Work> Receive(void* memory, size_t count, int peer, collectives::DataType type);
  // Exchanges a word with every rank of the group, which all call it, and waits until it is there.
  // NCCL connects two ranks at their first message, and waits for both: where the kernel of another
  // group's message is then under way on the GPU, either may wait for the other for ever.
  absl::Status ConnectForMessages();
  // The current stream goes on when the work is done; this thread at once. The session's failure.
  absl::Status Wait(const Work& work);
  // In the place of Wait, where the computation needs nothing of the work: whether it has ended.
  absl::StatusOr<bool> TryFinish(const Work& work);
  // Spans of works that were waited for or finished and have ended on the GPU, since the last call.
  std::vector<Span> TakeSpans();

 private:
  friend class NcclSession;
  struct Waited {
    Work work;
    WeftEvent* reached = nullptr;  // by the current stream: where it waits; null: it does not
  };
  struct UnderWay {
    WeftEvent* done;
    const char* name;
    absl::Time since;
  };
  NcclCollectives(std::shared_ptr<NcclSession> session, std::string group, int size,
                  WeftStream* current)
      : session_(std::move(session)), group_(std::move(group)), size_(size), current_(current) {}
  absl::Status Prepare(bool high_priority);
  const WeftDeviceTable& calls() const { return session_->device().calls(); }
  absl::StatusOr<WeftEvent*> NewEvent();
  absl::StatusOr<WeftEvent*> Record(WeftStream* stream);
  template <typename Call>
  absl::StatusOr<Work> Enqueue(const char* name, Call call);
  bool IsDone(WeftEvent* event) const;
  int64_t TimeOf(WeftEvent* event) const;
  void MoveReference(Waited newest);
  void Release(const Waited& waited);

  // Called by the session's thread.
  absl::Status Check(absl::Time now);
  // What the stream was given is done, in the session's timeout.
  bool IsIdle();

  const std::shared_ptr<NcclSession> session_;
  const std::string group_;
  const int size_;
  WeftStream* const current_;
  WeftStream* stream_ = nullptr;
  std::timed_mutex calling_;  // while NCCL is given work, and while it is aborted
  std::atomic<WeftNcclCommunicator*> communicator_ = nullptr;
  std::vector<WeftEvent*> free_;
  std::deque<Waited> waited_;
  // An event of the GPU's and its time on the host's clock: from it the others' times are reckoned.
  // It moves on with the works, since the distance of two events is a float of milliseconds.
  WeftEvent* reference_ = nullptr;
  int64_t reference_ns_ = 0;
  std::mutex under_way_mutex_;
  std::deque<UnderWay> under_way_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_NCCL_COLLECTIVES_H_
