// The event loop of one tcp transport, without a thread of its own: epoll, deadlines, and the list
// of handlers that have bytes to write. Turn() does one round; handlers are called from there and
// nowhere else. Not thread-safe.
#ifndef WEFT_NET_TCP_POLLER_H_
#define WEFT_NET_TCP_POLLER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "net/tcp/socket.h"

namespace weft::net {

class Poller;

class Handler {
 public:
  explicit Handler(Poller& poller) : poller_(poller) {}
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;
  virtual ~Handler();  // takes back its deadline and its turn; descriptors are the owner's matter

  virtual void OnEvents(uint32_t /*events*/, absl::Time /*now*/) {}  // EPOLL...
  virtual void OnDeadline(absl::Time /*now*/) {}                     // once for each SetDeadline
  virtual bool OnTurn(absl::Time /*now*/) { return false; }          // true: something moved

 protected:
  Poller& poller() const { return poller_; }
  void SetDeadline(absl::Time deadline);  // replaces the last one; InfiniteFuture: none
  void WantTurn();                        // OnTurn() once, in this round or in the next

 private:
  friend class Poller;
  Poller& poller_;
  absl::Time deadline_ = absl::InfiniteFuture();
  bool wants_turn_ = false;
};

class Poller {
 public:
  static absl::StatusOr<std::unique_ptr<Poller>> Create();

  int fd() const { return epoll_.get(); }
  absl::Status Add(int fd, uint32_t events, Handler* handler);
  void Change(int fd, uint32_t events, Handler* handler);
  // Before the descriptor is closed: a forked child may hold it open, and epoll would go on.
  void Remove(int fd);

  // Destroys it at the end of the round, as events of this round may still name it.
  void DeferDelete(std::unique_ptr<Handler> handler) {
    deferred_deletes_.push_back(std::move(handler));
  }

  bool Turn(absl::Time now);  // true: something moved
  // Runs the turns of the handlers that have asked for one (WantTurn), and of those that ask while
  // these run. Makes no system call of its own. True: something moved.
  bool RunTurnsOnly(absl::Time now);
  bool HasTurns() const { return !turns_.empty(); }
  absl::Time NextDeadline() const;

  // One buffer for all readers, hot in the second-level cache; its content does not outlive a call.
  // Aligned to 64 bytes.
  static constexpr size_t kReadBufferBytes = 256 << 10;
  std::byte* read_buffer() { return read_buffer_; }

 private:
  friend class Handler;
  explicit Poller(FileDescriptor epoll);
  bool RunTurns(absl::Time now);
  void RunDeadlines(absl::Time now);

  FileDescriptor epoll_;
  std::set<std::pair<absl::Time, Handler*>> deadlines_;
  std::vector<Handler*> turns_, running_;  // null: destroyed meanwhile
  std::vector<std::unique_ptr<Handler>> deferred_deletes_;
  std::unique_ptr<std::byte[]> read_memory_;
  std::byte* read_buffer_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_POLLER_H_
