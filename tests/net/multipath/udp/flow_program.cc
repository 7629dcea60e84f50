// One stream of messages from one process to another, for the fabric tier: what arrived, when, and
// what the protocol did for it. The receiver prints its address, "begun" when the first message is
// there, then a JSON object; the sender is given that address, and prints a JSON object as well.
//
//   multipath_flow --bind 10.1.0.1                             # receiver
//   multipath_flow --bind 10.1.1.1 --to 10.1.0.1:4711 --seconds 3 --set transport=multipath
//
// "stall_ms" is the longest time in which the front of what has arrived in order did not move: what
// somebody who waits for everything sees of a fault. "stall_at_s" is when it ended.
#include <poll.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/tcp/interface.h"
#include "net/transport.h"
#include "tests/net/multipath/udp/sender_of.h"

namespace weft::net {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

std::byte PatternByte(uint64_t message, size_t i) {
  return static_cast<std::byte>((message * 131 + i / 8) * 0x9E3779B97F4A7C15ULL >> (8 * (i % 8)));
}

struct Slot {
  Request request;
  std::vector<std::byte> bytes;
  Region region;
  uint64_t message = 0;
};

class Program final : public TransportEvents {
 public:
  int Run(int argc, char** argv);

 private:
  void OnAccepted(std::unique_ptr<ReceiveLink> link) override { receive_ = std::move(link); }
  void OnNotice(Link&, absl::string_view) override { told_ = true; }
  void OnBroken(Link&, const absl::Status& status) override { broken_ = status; }

  absl::Status Open();
  absl::Status Turn();
  absl::Status Send();
  void Trace(absl::Duration since);
  absl::Status Receive();
  void Fill(Slot& slot) {
    for (size_t i = 0; i < slot.bytes.size(); ++i) slot.bytes[i] = PatternByte(slot.message, i);
  }
  bool IsRight(const Slot& slot) {
    for (size_t i = 0; i < slot.bytes.size(); ++i) {
      if (slot.bytes[i] != PatternByte(slot.message, i)) return false;
    }
    return true;
  }

  std::string bind_, to_, kind_ = "multipath";
  std::vector<std::string> sets_;
  double seconds_ = 2;
  size_t size_ = 64 << 10;
  int depth_ = 32;
  bool traces_ = false;
  absl::Time traced_ = absl::InfinitePast();
  SystemClock clock_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<SendLink> send_;
  std::unique_ptr<ReceiveLink> receive_;
  std::deque<Slot> slots_;
  absl::Status broken_;
  bool told_ = false;
  nlohmann::json result_;
};

absl::Status Program::Open() {
  TransportOptions options;
  options.self = Rank(to_.empty() ? 1 : 0);
  options.world_size = 2;
  options.secret.fill(1);  // it meets nobody else
  options.events = this;
  WEFT_ASSIGN_OR_RETURN(std::vector<Interface> interfaces, ListInterfaces());
  for (const Interface& one : interfaces) {
    if (one.address.ToString() == bind_ + ":0") {
      WEFT_RETURN_IF_ERROR(options.settings.Set("tcp.interface", "=" + one.name, "--bind"));
    }
  }
  WEFT_RETURN_IF_ERROR(options.settings.Set("tcp.family", "ipv4", "--bind"));
  for (const std::string& pair : sets_) {
    WEFT_RETURN_IF_ERROR(options.settings.SetPair(pair, "--set"));
  }
  TransportKind kind = kind_ == "tcp" ? TransportKind::kTcp : TransportKind::kMultipath;
  WEFT_ASSIGN_OR_RETURN(transport_, CreateTransport(kind, options));
  for (int i = 0; i < depth_; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.bytes.resize(size_);
    WEFT_ASSIGN_OR_RETURN(slot.region, transport_->Register(slot.bytes.data(), size_));
  }
  return absl::OkStatus();
}

absl::Status Program::Turn() {
  if (transport_->Progress(clock_.Now())) return broken_;
  if (transport_->PrepareWait()) {
    absl::Duration left = std::min(transport_->NextDeadline() - clock_.Now(), absl::Seconds(1));
    pollfd fd{transport_->wait_fd(), POLLIN, 0};
    poll(&fd, 1, static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1)));
  }
  transport_->FinishWait();
  return broken_;
}

// What the sender's state is, twenty times a second.
void Program::Trace(absl::Duration since) {
  if (clock_.Now() < traced_ + absl::Milliseconds(50)) return;
  traced_ = clock_.Now();
  const multipath::Sender* of = multipath::SenderOf(*send_);
  if (of == nullptr) return;
  const multipath::Sender& sender = *of;
  std::fprintf(
      stderr, "%.3f window %.0f rate %.3g in_flight %.0f live %d rtt_ms %.2f timeouts %d\n",
      absl::ToDoubleSeconds(since), static_cast<double>(sender.controller().window().count()),
      sender.controller().rate().bytes_per_second(), static_cast<double>(sender.flight().bytes()),
      sender.paths().live(), absl::ToDoubleMilliseconds(sender.flight().rtt().smoothed()),
      static_cast<int>(sender.statistics().timeouts));
}

absl::Status Program::Send() {
  send_ = transport_->Connect(to_, Rank(1), clock_.Now());
  absl::Time begin = clock_.Now();
  uint64_t next = 0, ended = 0;
  bool is_last = false;
  while (!is_last || ended < next) {
    for (Slot& slot : slots_) {
      if (is_last || !slot.request.done()) continue;
      if (next > 0 && slot.message < next && slot.request.bytes() > 0) ++ended;
      if (clock_.Now() > begin + absl::Seconds(seconds_)) {
        is_last = true;
        break;
      }
      slot.message = next++;
      Fill(slot);
      (void)send_->PostSend({slot.message, 0}, slot.region.view(), &slot.request);
    }
    if (is_last) break;
    if (traces_) Trace(clock_.Now() - begin);
    WEFT_RETURN_IF_ERROR(Turn());
  }
  auto all_done = [&] {
    for (Slot& slot : slots_) {
      if (!slot.request.done()) return false;
    }
    return true;
  };
  absl::Time end = clock_.Now() + kPatience;
  while (!all_done() && clock_.Now() < end) WEFT_RETURN_IF_ERROR(Turn());
  if (!all_done()) return absl::DeadlineExceededError("messages have not ended");
  result_["messages"] = next;
  (void)send_->PostNotice(absl::StrCat(next));
  while (!told_ && clock_.Now() < end && Turn().ok()) {
  }
  if (const multipath::Sender* sender = multipath::SenderOf(*send_); sender != nullptr) {
    const multipath::SenderStatistics& seen = sender->statistics();
    result_["packets"] = seen.packets;
    result_["again"] = seen.retransmissions;
    result_["spurious"] = seen.spurious;
    result_["timeouts"] = seen.timeouts;
    result_["paths_left"] = seen.paths_left;
    result_["marks"] = seen.marks;
    result_["rtt_us"] = absl::ToDoubleMicroseconds(sender->flight().rtt().smoothed());
    result_["window"] = sender->controller().window().count();
  }
  return absl::OkStatus();
}

absl::Status Program::Receive() {
  std::printf("%s\n", transport_->address().c_str());
  std::fflush(stdout);
  absl::Time end = clock_.Now() + kPatience;
  while (receive_ == nullptr && clock_.Now() < end) WEFT_RETURN_IF_ERROR(Turn());
  if (receive_ == nullptr) return absl::DeadlineExceededError("nobody came");
  uint64_t posted = 0, front = 0, wrong = 0;
  absl::Time begin = absl::InfiniteFuture(), moved = begin;
  absl::Duration stall;
  absl::Time stall_at = begin;
  auto post = [&](Slot& slot) {
    slot.message = posted++;
    (void)receive_->PostReceive({slot.message, 0}, {slot.region.view()}, &slot.request);
  };
  for (Slot& slot : slots_) post(slot);
  absl::Time last = absl::InfinitePast();
  while (!told_) {
    WEFT_RETURN_IF_ERROR(Turn());
    absl::Time now = clock_.Now();
    // In order: what waits for an earlier one does not count as arrived.
    for (Slot* slot = &slots_[front % slots_.size()]; slot->request.done();
         slot = &slots_[front % slots_.size()]) {
      if (!slot->request.status().ok()) return slot->request.status();
      if (!IsRight(*slot)) ++wrong;
      if (front++ == 0) {
        begin = moved = now;
        std::printf("begun\n");
        std::fflush(stdout);
      }
      if (now - moved > stall) stall = now - moved, stall_at = now;
      last = moved = now;
      post(*slot);
    }
  }
  double took = std::max(1e-9, absl::ToDoubleSeconds(last - begin));
  result_["messages"] = front;
  result_["wrong"] = wrong;
  result_["seconds"] = took;
  result_["mbit"] = static_cast<double>(front) * static_cast<double>(size_) * 8e-6 / took;
  result_["stall_ms"] = absl::ToDoubleMilliseconds(stall);
  result_["stall_at_s"] = absl::ToDoubleSeconds(stall_at - begin);
  (void)receive_->PostNotice("seen");
  for (int i = 0; i < 100 && broken_.ok(); ++i) (void)Turn();
  return absl::OkStatus();
}

int Program::Run(int argc, char** argv) {
  CLI::App app{"One stream of messages over one transport"};
  app.add_option("--bind", bind_, "Address of this host's interface")->required();
  app.add_option("--to", to_, "The receiver's address; empty: be the receiver");
  app.add_option("--transport", kind_, "multipath or tcp")
      ->check(CLI::IsMember({"multipath", "tcp"}));
  app.add_option("--seconds", seconds_, "How long messages are begun");
  app.add_option("--size", size_, "Bytes of a message");
  app.add_option("--depth", depth_, "Messages under way")->check(CLI::Range(1, 1000));
  app.add_flag("--trace", traces_, "Print the sender's state twenty times a second");
  app.add_option("--set", sets_, "A setting, name=value");
  CLI11_PARSE(app, argc, argv);
  absl::Status status = Open();
  if (status.ok()) status = to_.empty() ? Receive() : Send();
  // Requests outlive links, links their transport.
  send_.reset();
  receive_.reset();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("%s\n", result_.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) { return weft::net::Program().Run(argc, argv); }
