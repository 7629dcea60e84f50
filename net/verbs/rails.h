// The devices of one transport ("rails") and what its links share on them: registered memory,
// completion queues, the ids that map completions to queue pairs, asynchronous events.
#ifndef WEFT_NET_VERBS_RAILS_H_
#define WEFT_NET_VERBS_RAILS_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "net/tcp/socket.h"
#include "net/verbs/choice.h"
#include "net/verbs/memory.h"
#include "net/verbs/nic.h"
#include "net/verbs/options.h"
#include "net/verbs/record.h"
#include "net/verbs/thread_pool.h"

namespace weft::net {

// An entry takes two work requests at most; and some receives are posted in bulk.
inline constexpr uint32_t kSendDepth = 2 * kRingSlots;
inline constexpr uint32_t kReceiveDepth = kRingSlots + 32;

// The user of queue pairs. Called from Rails::Poll(), Rails::TakeEvents() and, where nothing is to
// be waited for, RailQueuePair::Connect() only.
class QueuePairUser {
 public:
  virtual ~QueuePairUser() = default;
  // `number` is what was given to RailQueuePair::SendId or PostReceives, 31 bits.
  virtual void OnCompletion(int lane, bool receive, uint32_t number, const NicCompletion& what) = 0;
  virtual void OnQueuePairLost(int lane, const std::string& why) = 0;
  // Once for each Connect(), unless the queue pair is destroyed before.
  virtual void OnConnected(int /*lane*/, const absl::Status& /*status*/) {}
};

// Takes the completions of the receives that a rail's queue pairs share.
class SharedReceiveUser {
 public:
  virtual ~SharedReceiveUser() = default;
  // `number`: as given to Rails::SharedReceiveId().
  virtual void OnReceived(int rail, uint32_t number, const NicCompletion& what) = 0;
};

// How the queue pairs of a transport are made.
struct PairLayout {
  NicService service = NicService::kReliable;
  uint32_t send_depth = kSendDepth;
  uint32_t receive_depth = kReceiveDepth;  // without memory, all posted; unless they are shared
};

class Rails;

// A queue pair with its place in a completion queue. Once this is destroyed, nothing of it is
// heard, and it reads and writes no memory; the device's own part may be destroyed a little later.
class RailQueuePair {
 public:
  RailQueuePair(Rails& rails, int rail, size_t queue, uint32_t id,
                std::unique_ptr<NicQueuePair> pair, uint32_t inline_bytes)
      : rails_(rails),
        rail_(rail),
        queue_(queue),
        id_(id),
        pair_(std::move(pair)),
        inline_bytes_(inline_bytes) {}
  ~RailQueuePair();
  RailQueuePair(const RailQueuePair&) = delete;
  RailQueuePair& operator=(const RailQueuePair&) = delete;

  NicQueuePair& pair() { return *pair_; }
  int rail() const { return rail_; }
  size_t queue() const { return queue_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint64_t SendId(uint32_t number) const { return uint64_t{id_} << 32 | (number & kNumberMask); }
  absl::Status PostReceives(uint32_t first, int count);
  // To state RTS; QueuePairUser::OnConnected() says when. The device may have to wait for the other
  // side's address, which holds nothing up.
  void Connect(const NicPath& path);

  static constexpr uint32_t kNumberMask = 0x7FFFFFFF;

 private:
  struct Connecting;
  Rails& rails_;
  int rail_;
  size_t queue_;
  uint32_t id_;
  std::unique_ptr<NicQueuePair> pair_;
  uint32_t inline_bytes_;
  std::shared_ptr<Connecting> connecting_;  // null: nobody else has to do with it
};

struct Rail {
  std::unique_ptr<NicDevice> device;
  std::unique_ptr<NicReceiveQueue> receives;  // shared; null: none
  NicLimits limits;
  NicPort port;
  GidChoice gid;
  bool port_down = false;  // by an event; its queue pairs may come back
  bool lost = false;       // the device failed for good
  // What has come to its queue pairs' own receives, and queue pairs that have ended, whose last
  // completions may be lost.
  uint64_t arrivals = 0;
  struct Queue {
    std::unique_ptr<NicCompletionQueue> queue;
    uint32_t pairs = 0;
    bool lost = false;  // only its queue pairs keep it
  };
  std::vector<Queue> queues;
  uint32_t pairs_per_queue = 1;
  std::string Describe() const;  // "mlx5_0 port 1, GID 3 ::ffff:10.1.0.1 (RoCE v2, IPv4), ..."
};

// The port and its GID in `rail`, or why it cannot be used.
absl::Status ExaminePort(NicDevice& device, int number, const VerbsOptions& options, Rail* rail);

class Rails {
 public:
  // kNotFound where no device fits, with each device and why not.
  static absl::StatusOr<std::unique_ptr<Rails>> Open(std::unique_ptr<Nic> nic,
                                                     const VerbsOptions& options,
                                                     const PairLayout& layout = {});
  ~Rails();

  int size() const { return static_cast<int>(rails_.size()); }
  Rail& operator[](int rail) { return rails_[static_cast<size_t>(rail)]; }
  const VerbsOptions& options() const { return options_; }
  const PairLayout& layout() const { return layout_; }
  // Before there are queue pairs: makes a queue of so many receives of each rail, which its pairs
  // share instead of having their own. `user` hears of their completions.
  absl::Status ShareReceives(SharedReceiveUser* user, uint32_t count);
  static uint64_t SharedReceiveId(int rail, uint32_t number);  // of 24 bits
  // When this returns, no queue pair that was destroyed uses them any more, nor a user's memory.
  void DropSharedReceives();
  MemoryCache& memory() { return *memory_; }

  // In state INIT, with all receives posted, numbered from 0. The port and its GID are read anew.
  absl::StatusOr<std::unique_ptr<RailQueuePair>> MakeQueuePair(int rail, QueuePairUser* user,
                                                               int lane);
  // All of a path that this side alone decides.
  NicPath PathFrom(int rail, uint16_t source_port);
  bool Poll();  // hands completions out; true: there were some
  // What the devices have completed by now has been handed out when HandedOut(Mark()).
  uint64_t Mark() const { return polls_; }
  bool HandedOut(uint64_t mark) const;
  // Before sleeping: true when the completion_fd()s of all rails will be readable once there is
  // something to Poll(); false when there is already.
  bool Arm();
  void TakeEvents(int rail);
  // Readable when OnConnected() waits for Poll().
  int connected_fd() const { return connected_fd_.get(); }

 private:
  friend class RailQueuePair;
  struct Connected {
    uint32_t id = 0;
    absl::Status status;
  };
  struct User {
    QueuePairUser* user = nullptr;
    int lane = 0;
    int rail = 0;
    size_t queue = 0;
    uint32_t queue_pair = 0;
  };
  Rails(const VerbsOptions& options, const PairLayout& layout)
      : options_(options), layout_(layout) {}
  // What the queue pairs of one completion queue have outstanding at most.
  uint32_t CompletionsOfPair() const {
    return layout_.send_depth + (shared_receives_ > 0 ? 0 : layout_.receive_depth);
  }
  absl::Status OpenRail(const std::string& name, std::string* reasons);
  absl::StatusOr<size_t> QueueWithRoom(int rail);
  void DeferCompletions(int rail, size_t queue);  // keeps what has completed for the next Poll()
  void HandOut(const NicCompletion& completion);
  void StartThreadPools();
  void NoteConnected(uint32_t id, absl::Status status);  // by any thread
  bool HandOutConnected();
  template <typename Which>
  void Lose(const Which& which, const std::string& why);

  VerbsOptions options_;
  PairLayout layout_;
  SharedReceiveUser* shared_user_ = nullptr;
  uint32_t shared_receives_ = 0;
  std::unique_ptr<Nic> nic_;
  std::vector<Rail> rails_;
  std::unique_ptr<MemoryCache> memory_;
  std::unordered_map<uint32_t, User> users_;
  uint32_t next_id_ = 1;
  std::vector<NicCompletion> found_, deferred_;
  bool armed_ = false;
  std::mutex connected_mutex_;
  std::vector<Connected> connected_;
  std::atomic<bool> has_connected_ = false;
  FileDescriptor connected_fd_;
  std::unique_ptr<ThreadPool> connecting_, retirement_;
  uint64_t polls_ = 0, emptied_ = 0;  // begun; the last one that left nothing
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_RAILS_H_
