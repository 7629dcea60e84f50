// Progresses connections while NCCL does not call them: one thread for all connections of a
// backend.
//
// NCCL calls a connection only as long as it waits for something of its own. Its peer may need it
// after that: an acknowledgement was lost and is asked for again, a queue pair was lost and both
// sides must exchange what has arrived. Without an answer, the peer would wait until this side's
// next request, which may itself wait for the peer.
//
// A thread that drives a client says so (NoteDriven); a client that no thread has driven for kQuiet
// to 2 kQuiet is idle: this thread drives it whenever its descriptor is readable or its deadline
// has come. So a busy connection costs a load a call, an idle one nothing, and many idle ones do
// not slow down the few that are active. The thread lives as long as there are clients.
//
// Thread-safe.
#ifndef WEFT_PLUGINS_NCCL_IDLE_PROGRESS_THREAD_H_
#define WEFT_PLUGINS_NCCL_IDLE_PROGRESS_THREAD_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/epoll.h"
#include "base/file_descriptor.h"

namespace weft::nccl {

class IdleProgressThread {
 public:
  static constexpr absl::Duration kQuiet = absl::Milliseconds(5);

  class Client {
   public:
    Client() = default;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    // An epoll descriptor or the like: readable when ProgressIdle() has work.
    virtual int wait_fd() const = 0;
    // Does the client's pending work, in the idle progress thread. Returns when it is to be called
    // again if wait_fd() does not become readable earlier; `now` or earlier: at once.
    virtual absl::Time ProgressIdle(absl::Time now) = 0;

   protected:
    ~Client() = default;

   private:
    friend class IdleProgressThread;
    // kDriven: another thread has driven it since this thread last looked; kQuietSince: none has
    // since then; kIdle: this thread drives it.
    enum class State : uint8_t { kDriven, kQuietSince, kIdle };
    std::atomic<State> state_{State::kDriven};
    uint64_t number_ = 0;
    size_t place_ = 0;                         // in active_, while it is not idle
    bool called_ = false;                      // while ProgressIdle() runs
    absl::Time due_ = absl::InfiniteFuture();  // in dues_
  };

  IdleProgressThread() = default;
  ~IdleProgressThread();
  IdleProgressThread(const IdleProgressThread&) = delete;
  IdleProgressThread& operator=(const IdleProgressThread&) = delete;

  // Progresses the client until Remove(). ResourceExhausted: no descriptor or thread is left.
  absl::Status Add(Client& client);
  // ProgressIdle() is not under way when this returns, nor called again. Whatever ProgressIdle()
  // locks must be free.
  void Remove(Client& client);
  // The client has work that its descriptor does not show: if it is idle, it is progressed now.
  // From any thread, also from another client's ProgressIdle().
  void Call(Client& client);
  // The process ends: nobody is progressed any more, though clients and threads that drive them may
  // still be there.
  void End();
  void NoteDriven(Client& client) {
    if (client.state_.load(std::memory_order_relaxed) == Client::State::kDriven) return;
    if (client.state_.exchange(Client::State::kDriven) == Client::State::kIdle) LeaveIdle(client);
  }

 private:
  static constexpr uint64_t kBell = 1;
  absl::Status Start();
  void Stop();
  void Join();
  void Run();
  void Wake();
  void LeaveIdle(Client& client);
  bool AddActive(Client& client);  // true: the thread has to be told
  void RemoveActive(Client& client);
  void SetDue(Client& client, absl::Time due);
  // Puts the numbers of the clients that are to be progressed now into `due_`.
  void FindDue(absl::Time now);
  void ProgressClient(uint64_t number, std::unique_lock<std::mutex>& lock);
  void Wait(absl::Time now, std::unique_lock<std::mutex>& lock);

  std::mutex life_;  // of Add() and Remove(), and so of the thread
  std::thread thread_;
  pid_t process_ = 0;     // that has it
  bool is_over_ = false;  // End() was called
  Epoll epoll_;
  FileDescriptor bell_;
  uint64_t next_number_ = kBell + 1;

  // Guards all below. Held for no system call but the write to bell_, for which the client must
  // still exist.
  std::mutex mutex_;
  std::condition_variable progressed_;
  std::unordered_map<uint64_t, Client*> clients_;  // by the number that epoll knows them by
  std::vector<Client*> active_;                    // not idle at the last look
  std::set<std::pair<absl::Time, Client*>> dues_;  // when idle clients are to be called again
  std::vector<uint64_t> due_;
  uint64_t progressing_ = 0;  // number of the client whose ProgressIdle() runs; 0: none
  absl::Time next_look_ = absl::InfinitePast();  // at active_
  bool ends_ = false;
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_IDLE_PROGRESS_THREAD_H_
