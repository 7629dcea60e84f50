// What tests of transports share: a job of several ranks in one process, bounded waiting, child
// processes that a test can stop and kill, and patterns to recognise bytes by.
#ifndef WEFT_TESTS_NET_HARNESS_H_
#define WEFT_TESTS_NET_HARNESS_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "net/transport.h"

namespace weft::net {

// Bounds a hang; no test expects to come near it.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

absl::Time Now();

// CreateTransport, unless the test program defines it otherwise (tests/net/verbs does).
absl::StatusOr<std::unique_ptr<Transport>> MakeTestTransport(TransportKind kind,
                                                             const TransportOptions& options);

// One rank: a transport, and what it told us. Links are kept until the peer of a test goes.
class Node final : public TransportEvents {
 public:
  Node(TransportKind kind, int rank, int world_size, std::vector<std::string> settings = {},
       const std::function<void(TransportOptions&)>& tweak = {});
  ~Node() override;

  Transport& transport() { return *transport_; }
  const std::string& address() { return transport_->address(); }
  int rank() const { return rank_; }
  bool Progress() { return transport_->Progress(Now()); }

  SendLink* Connect(const std::string& address, int peer);
  ReceiveLink* accepted(int peer) { return accepted_.count(peer) ? accepted_[peer] : nullptr; }
  void Destroy(Link* link);

  struct Told {
    Link* link;
    std::string text;
  };
  std::vector<Told> notices;
  std::vector<std::pair<Link*, absl::Status>> broken;
  std::vector<absl::Status> mismatches;
  int accepted_count = 0;
  std::function<void(Link&)> on_notice;

  void OnAccepted(std::unique_ptr<ReceiveLink> link) override;
  void OnNotice(Link& link, absl::string_view bytes) override;
  void OnBroken(Link& link, const absl::Status& status) override;
  void OnMismatch(Link&, const absl::Status& status) override { mismatches.push_back(status); }

 private:
  int rank_;
  std::unique_ptr<Transport> transport_;
  std::list<std::unique_ptr<Link>> links_;
  std::map<int, ReceiveLink*> accepted_;  // the newest of each peer
};

TransportOptions OptionsFor(int rank, int world_size, const std::vector<std::string>& settings);

inline void Turn(Node& node, int turns) {
  for (int i = 0; i < turns; ++i) node.Progress();
}
// Turns every node until `condition`; false after `patience`.
bool DriveUntil(const std::vector<Node*>& nodes, const std::function<bool()>& condition,
                absl::Duration patience = kPatience);

// Two nodes and a link from the first to the second.
struct Pair {
  explicit Pair(TransportKind kind, std::vector<std::string> settings = {});
  bool Drive(const std::function<bool()>& condition, absl::Duration patience = kPatience) {
    return DriveUntil({&a, &b}, condition, patience);
  }
  bool Done(const std::vector<const Request*>& requests);
  Node a, b;
  SendLink* send = nullptr;        // of a, to b
  ReceiveLink* receive = nullptr;  // of b
};

// Registered memory that is its own owner.
class Buffer {
 public:
  Buffer(Transport& transport, size_t size, size_t alignment = 64);
  RegionView view() const { return region_.view(); }
  std::byte* data() { return memory_.get(); }
  size_t size() const { return size_; }
  void FillPattern(uint64_t seed);
  void Clear(int value) { std::fill_n(memory_.get(), size_, static_cast<std::byte>(value)); }
  // "" or where the first wrong byte lies.
  std::string CheckPattern(uint64_t seed, size_t bytes) const;

 private:
  size_t size_;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> memory_;
  Region region_;
};
std::byte PatternByte(uint64_t seed, size_t index);

// out = local + incoming, byte by byte; and checks what it promises about pieces.
void AddBytes(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes);

// A forked process that runs `body` and exits with its result. Fork before any transport exists in
// this process, or do not touch it in the child. The destructor kills what still runs.
class Child {
 public:
  // The two talk over a pair of pipes, a line at a time.
  struct Channel {
    int in = -1, out = -1;
    void Say(const std::string& line) const;
    std::string Hear() const;  // "" when the other end is gone; gives up after kPatience
  };
  explicit Child(const std::function<int(Channel&)>& body);
  ~Child();
  void Signal(int number) const;  // SIGSTOP: returns once it has stopped; SIGKILL: once it is dead
  int Wait();                     // its exit status; -number when a signal ended it
  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  Channel channel_;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_HARNESS_H_
