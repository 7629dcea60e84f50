// A StoreCore's listener and connections in a poller: accepts, reads, writes. All answers of one
// turn go in one write a connection. Large ones, which often all clients get at once, go to a few
// connections at a time: the first have theirs early, and what lies in the kernel's buffers is
// bounded, and stays in the processor's cache. A connection that takes nothing for some
// milliseconds does not delay others. For StoreServer and StoreRelay.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_SERVICE_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_SERVICE_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/log_throttle.h"
#include "base/poller.h"
#include "base/socket_address.h"
#include "collectives/store/protocol/store_connection.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {

// Listens; `address` becomes the real one. kAlreadyExists: it is taken. This socket, and those that
// it accepts, are the process's alone (net/tcp/close_on_fork.h).
absl::StatusOr<FileDescriptor> ListenForStore(SocketAddress& address,
                                              absl::Duration silence = kStoreSilence);

class StoreService final : public PollHandler {
 public:
  // The poller and the core outlive it. `limit`: connections. Where there are that many, or no
  // file descriptors left, or connections that have not finished their handshake take half of this
  // process's descriptors or a quarter of the core's memory, the oldest of those is closed for a
  // new one; where there is none, the new one is.
  StoreService(Poller& poller, StoreCore& core, FileDescriptor listener,
               const SocketAddress& address, int64_t limit);
  // Ends all connections, though a forked process may have copies of their descriptors.
  ~StoreService() override;
  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;

  void OnEvents(uint32_t events, absl::Time now) override;  // the listener
  // Once a turn, after the poller's: writes what the core has to say. `before_writing` is called
  // when there is something.
  void Settle(absl::Time now, const std::function<void()>& before_writing);
  // When Settle() is due though nothing has happened.
  absl::Time deadline() const;
  // Whether something happened since the last Settle().
  bool touched() const { return touched_; }

  const std::string& address() const { return name_; }
  int64_t accepted() const { return accepted_; }
  int64_t refused() const { return refused_; }
  int64_t reads() const { return reads_; }
  int64_t writes() const { return writes_; }
  Bytes bytes_sent() const { return bytes_sent_; }
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Peer final : PollHandler {
    Peer(StoreService* owner, uint64_t name, FileDescriptor fd)
        : PollHandler(owner->poller()), service(owner), id(name), socket(std::move(fd)) {}
    void OnEvents(uint32_t events, absl::Time /*now*/) override {
      service->PeerReady(*this, events);
    }

    StoreService* const service;
    const uint64_t id;
    FileDescriptor socket;
    bool idle() const { return first == queue.size(); }
    std::vector<StoreFrameOut> queue;
    size_t first = 0;      // of the queue that is not written
    size_t queued = 0;     // bytes from there on, with those of the first that are written
    size_t written = 0;    // of the first
    uint32_t watched = 0;  // epoll's events
    bool dirty = false;
    // A large answer: waits for its turn, has it, or has lost it by taking nothing, and goes on as
    // its socket lets it.
    enum class Large { kNo, kWaits, kGoes, kSlow } large = Large::kNo;
    absl::Time progress;  // kGoes: the last write that took something
  };

  void Watch(int fd, PollHandler& handler);
  void Accept();
  void Admit(FileDescriptor socket, const std::string& peer);
  bool EvictOldest(absl::string_view why);
  bool MakeRoom(FileDescriptor& socket, const std::string& peer);
  void Pause(int error);
  void Resume(absl::Time now);
  void PeerReady(Peer& peer, uint32_t events);
  void MarkDirty(Peer& peer);
  void TakeOutput();
  void Write(Peer& peer);
  bool MayWrite(Peer& peer);
  void EndLarge(Peer& peer);
  void GiveTurns();
  void Drop(uint64_t id);
  void Rewatch(Peer& peer);
  void Note(const StoreConnections::Closing& closing);
  void TellLeftOut();

  const pid_t owner_;
  StoreCore& core_;
  FileDescriptor listener_;
  FileDescriptor spare_;  // given up to accept a connection where no other is left
  const std::string name_;
  const bool local_;
  const int64_t limit_;
  const int64_t unproven_max_;
  absl::Time resume_at_ = absl::InfiniteFuture();  // accepting, which failed
  LogThrottle notes_;
  LogThrottle pauses_;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;
  std::vector<uint64_t> dirty_;
  std::vector<StoreConnections::Output> output_;
  std::vector<Peer*> going_;      // large answers that have their turn
  std::deque<uint64_t> waiting_;  // and those that wait for it
  uint64_t next_ = 1;
  bool touched_ = true;
  int64_t accepted_ = 0;
  int64_t refused_ = 0;
  int64_t reads_ = 0;
  int64_t writes_ = 0;
  Bytes bytes_sent_;
  std::string last_refusal_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_SERVICE_H_
