// The links of one process that are measured: its transport, a link to each rank that it sends to
// and from each rank that it receives from, and how its one thread spent the time.
#ifndef WEFT_TOOLS_BW_LINK_MEASURED_LINKS_H_
#define WEFT_TOOLS_BW_LINK_MEASURED_LINKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "net/transport.h"
#include "tools/bw/link/bootstrap.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

// What this process has used of its processors, over some time.
struct Usage {
  double seconds = 0;
  double busy = 0;        // share of the time in turns that moved something
  double core = 0;        // share of a core that the thread got
  double kernel = 0;      // share of its CPU time spent in the kernel
  double process = 0;     // CPU seconds of all threads, a second
  int64_t preempted = 0;  // times that the thread lost the core
};

class MeasuredLinks final : private net::TransportEvents {
 public:
  // Connects to `targets` and waits for the links of `sources`, whom nothing tells that a source
  // cannot reach this host: for twice transport.connect_timeout. Every rank calls it.
  static absl::StatusOr<std::unique_ptr<MeasuredLinks>> Create(Bootstrap& bootstrap,
                                                               const Load& load,
                                                               const Settings& settings,
                                                               const std::set<int>& targets,
                                                               const std::set<int>& sources);
  ~MeasuredLinks() override;

  net::Transport& transport() { return *transport_; }
  net::SendLink& to(int rank) { return *to_.at(rank); }
  net::ReceiveLink& from(int rank) { return *from_.at(rank); }
  const std::map<int, std::unique_ptr<net::SendLink>>& sends() const { return to_; }
  std::string Describe() const;  // a line a link

  // One turn of the transport. Where nothing moved: sleeps (Load::events), or now and then offers
  // the core to others. An error is that of a link.
  absl::Status Turn();
  // As Turn(), but sleeps where nothing moves, for a millisecond at most; for waiting on others.
  void Serve();
  // Nanoseconds, as read in the last turn.
  int64_t now() const { return now_; }

  void StartUsage();
  Usage StopUsage();

 private:
  explicit MeasuredLinks(bool sleeps) : sleeps_(sleeps) {}
  absl::Status Connect(Bootstrap& bootstrap, const std::set<int>& targets,
                       const std::set<int>& sources, absl::Duration patience);
  bool Progress();
  void Sleep(int64_t nanoseconds);

  void OnAccepted(std::unique_ptr<net::ReceiveLink> link) override;
  void OnNotice(net::Link&, absl::string_view) override {}
  void OnBroken(net::Link& link, const absl::Status& status) override;

  const bool sleeps_;
  std::unique_ptr<net::Transport> transport_;
  std::map<int, std::unique_ptr<net::SendLink>> to_;
  std::map<int, std::unique_ptr<net::ReceiveLink>> from_;
  absl::Status status_;
  int64_t now_ = 0;
  int idle_turns_ = 0;

  struct Marks {
    int64_t wall = 0, busy = 0, user = 0, kernel = 0, process = 0, preempted = 0;
  };
  Marks ReadMarks() const;
  Marks start_;
  int64_t busy_ = 0;  // nanoseconds, ever
};

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* memory) const;
};

// Registered memory for `count` messages of `size` bytes: slot i lies where slot i % count lies.
// All of it has been touched.
class Slots {
 public:
  static absl::StatusOr<Slots> Allocate(net::Transport& transport, size_t size, int count);
  net::RegionView view(int slot, size_t bytes) const {
    return region_.view().Slice(static_cast<size_t>(slot % count_) * stride_, bytes);
  }

 private:
  std::unique_ptr<std::byte, Unmap> memory_;  // before the region, which goes first
  net::Region region_;
  size_t stride_ = 0;
  int count_ = 1;
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_MEASURED_LINKS_H_
