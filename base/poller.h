// An event loop without a thread of its own: descriptors that become ready, deadlines, and the
// handlers that have asked for a turn. Turn() does one round, Sleep() waits before it; handlers are
// called from there and nowhere else. Not thread-safe.
#ifndef WEFT_BASE_POLLER_H_
#define WEFT_BASE_POLLER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/epoll.h"
#include "base/file_descriptor.h"

namespace weft {

class Poller;

class PollHandler {
 public:
  explicit PollHandler(Poller& poller) : poller_(poller) {}
  PollHandler(const PollHandler&) = delete;
  PollHandler& operator=(const PollHandler&) = delete;
  virtual ~PollHandler();  // takes back its deadline and its turn; descriptors are the owner's

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

  int fd() const { return epoll_.fd(); }
  absl::Status Add(int fd, uint32_t events, PollHandler* handler) {
    return epoll_.Add(fd, events, {.ptr = handler});
  }
  void Change(int fd, uint32_t events, PollHandler* handler);  // `fd` must be there
  // Before the descriptor is closed. Does nothing in a forked process.
  void Remove(int fd) { epoll_.Remove(fd); }

  // Destroys it at the end of the round, as events of this round may still name it.
  void DeferDelete(std::unique_ptr<PollHandler> handler) {
    deferred_deletes_.push_back(std::move(handler));
  }

  bool Turn(absl::Time now);  // true: something moved
  // Runs the turns of the handlers that have asked for one (WantTurn), and of those that ask while
  // these run. Makes no system call of its own. True: something moved.
  bool RunTurnsOnly(absl::Time now);
  bool HasTurns() const { return !turns_.empty(); }
  absl::Time NextDeadline() const;
  // Sleeps until a descriptor is ready, a deadline has come, or `until`; then does a round. Times
  // are SystemClock's.
  void Sleep(absl::Time until);
  // When this round began, or the last one where none is under way.
  absl::Time now() const { return now_; }
  void SetNow(absl::Time now) { now_ = now; }  // for work between rounds

  // One buffer for all readers, hot in the second-level cache; its content does not outlive a call.
  // Aligned to 64 bytes.
  static constexpr size_t kReadBufferBytes = 256 << 10;
  std::byte* read_buffer() { return read_buffer_; }

 private:
  friend class PollHandler;
  explicit Poller(Epoll epoll);
  bool RunTurns(absl::Time now);
  void RunDeadlines(absl::Time now);
  bool RunRound(absl::Span<const epoll_event> events, absl::Time now);

  Epoll epoll_;
  absl::Time now_ = SystemClock().Now();
  std::set<std::pair<absl::Time, PollHandler*>> deadlines_;
  std::vector<PollHandler*> turns_, running_;  // null: destroyed meanwhile
  std::vector<std::unique_ptr<PollHandler>> deferred_deletes_;
  std::unique_ptr<std::byte[]> read_memory_;
  std::byte* read_buffer_;
};

// Ends a poller's sleep: Wake() by any thread.
class PollWaker final : public PollHandler {
 public:
  static absl::StatusOr<std::unique_ptr<PollWaker>> Create(Poller& poller);
  ~PollWaker() override { poller().Remove(event_.get()); }
  void Wake();

 private:
  PollWaker(Poller& poller, FileDescriptor event) : PollHandler(poller), event_(std::move(event)) {}
  void OnEvents(uint32_t events, absl::Time now) override;
  FileDescriptor event_;
};

}  // namespace weft

#endif  // WEFT_BASE_POLLER_H_
