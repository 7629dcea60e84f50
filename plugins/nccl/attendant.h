// Drives connections while nobody else does: one thread for all that a backend has.
//
// NCCL calls a connection only as long as it waits for something of its own. Its peer may need it
// after that: an acknowledgement was lost and is asked for again, a queue pair was lost and both
// sides must say what has arrived. With nobody to answer, the peer would wait until this side's
// next request, which may itself wait for the peer.
//
// Whoever drives a client says so (NoteDriven); one that nobody has driven for kQuiet to 2 kQuiet
// is resting: it is driven from here whenever its descriptor is readable or its deadline has come.
// So a busy connection costs a load a call, a resting one nothing, and many that rest are no burden
// to the few that do not. The thread lives as long as there are clients.
//
// Thread-safe.
#ifndef WEFT_PLUGINS_NCCL_ATTENDANT_H_
#define WEFT_PLUGINS_NCCL_ATTENDANT_H_

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
#include "net/tcp/socket.h"

namespace weft::nccl {

class Attendant {
 public:
  static constexpr absl::Duration kQuiet = absl::Milliseconds(5);

  class Client {
   public:
    Client() = default;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    // An epoll descriptor or the like: readable when Attend() has work.
    virtual int wait_fd() const = 0;
    // Does what is to be done, from the attendant's thread. Returns until when nothing is, unless
    // wait_fd() becomes readable; `now` or earlier: there is more.
    virtual absl::Time Attend(absl::Time now) = 0;

   protected:
    ~Client() = default;

   private:
    friend class Attendant;
    // kDriven: by somebody else, since the attendant last looked; kQuietSince: not since then;
    // kResting: it is the attendant's to drive.
    enum class State : uint8_t { kDriven, kQuietSince, kResting };
    std::atomic<State> state_{State::kDriven};
    uint64_t number_ = 0;
    size_t place_ = 0;                         // in awake_, while it does not rest
    bool called_ = false;                      // while it is attended to
    absl::Time due_ = absl::InfiniteFuture();  // in dues_
  };

  Attendant() = default;
  ~Attendant();
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

  // Until it is removed. ResourceExhausted: no descriptor or thread is left.
  absl::Status Add(Client& client);
  // Attend() is not under way when this returns, nor called again. Whatever Attend() locks must be
  // free.
  void Remove(Client& client);
  // It has work that its descriptor does not show: if it rests, it is attended to now. From any
  // thread, also from another client's Attend().
  void Call(Client& client);
  void NoteDriven(Client& client) {
    if (client.state_.load(std::memory_order_relaxed) == Client::State::kDriven) return;
    if (client.state_.exchange(Client::State::kDriven) == Client::State::kResting) Rouse(client);
  }

 private:
  static constexpr uint64_t kBell = 1;
  absl::Status Start();
  void Stop();
  void Run();
  void Wake();
  void Rouse(Client& client);
  bool PutAwake(Client& client);  // true: the thread has to be told
  void DropAwake(Client& client);
  void SetDue(Client& client, absl::Time due);
  // Puts those that are to be attended to now into `due_`.
  void FindDue(absl::Time now);
  void AttendTo(uint64_t number, std::unique_lock<std::mutex>& lock);
  void Wait(absl::Time now, std::unique_lock<std::mutex>& lock);

  std::mutex life_;  // of Add() and Remove(), and so of the thread
  std::thread thread_;
  pid_t process_ = 0;  // that has it
  net::FileDescriptor epoll_, bell_;
  uint64_t next_number_ = kBell + 1;

  // Of all below. Held for no system call but a ring, which needs a client to be there still.
  std::mutex mutex_;
  std::condition_variable attended_;
  std::unordered_map<uint64_t, Client*> clients_;  // by the number that epoll knows them by
  std::vector<Client*> awake_;                     // those that did not rest at the last look
  std::set<std::pair<absl::Time, Client*>> dues_;  // until when those that rest may be left alone
  std::vector<uint64_t> due_;
  uint64_t attending_ = 0;  // a client's number, while it is attended to; 0: none
  absl::Time next_look_ = absl::InfinitePast();  // at those that are awake
  bool ends_ = false;
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_ATTENDANT_H_
