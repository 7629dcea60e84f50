// verbs_stream RANK FILE seed:N seconds:S [limit:S] [bytes:MAX] [SETTING=VALUE]...: one of two
// ranks that send each other messages of drawn sizes, up to 1 MiB or MAX, and places for S seconds,
// while something happens to the network, and check every byte. It prints, with times of
// /proc/uptime's clock in seconds:
//
//   going                                   the first message has come
//   sent MESSAGES BYTES, received MESSAGES BYTES
//   slowest MS from T                       of the messages sent: from its posting on
//   gap MS from T                           the longest time in which none came
//   broken T TEXT                           a link ended with an error
//   wrong TEXT                              a byte was
//   hang T TEXT                             for `limit` seconds nothing was done, and no error came
//
// Exit status: 0 all right; 3 broken; 4 wrong; 5 hang.
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "tests/roce/rank.h"

namespace weft::net {
namespace {

constexpr size_t kMessageMax = 1 << 20;
constexpr size_t kWindow = 4;  // messages posted each way
constexpr int kAdded = 3;      // by reduction

double Uptime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What message n of one direction is; both sides draw the same.
struct Message {
  size_t from = 0, bytes = 0;
  bool reduce = false;
  Message(uint64_t seed, int sender, uint64_t number, size_t bytes_max) {
    uint64_t state = seed * 2 + static_cast<uint64_t>(sender) + number * 0x9E3779B97F4A7C15ULL;
    Random random(SplitMix64(state));
    const bool small = random.Below(4) == 0;
    bytes = 1 + random.Below(small ? 300 : bytes_max);
    from = random.Below(kMessageMax);
    reduce = random.Below(4) == 0;
  }
};

class Stream {
 public:
  Stream(TestRank& rank, uint64_t seed, size_t bytes_max, absl::Duration time, absl::Duration limit)
      : rank_(rank),
        seed_(seed),
        bytes_max_(std::min(bytes_max, kMessageMax)),
        time_(time),
        limit_(limit),
        source_(rank.node().transport(), 2 * kMessageMax),
        local_(kMessageMax, static_cast<std::byte>(kAdded)) {
    source_.FillPattern(seed);
    for (Slot& slot : slots_) {
      slot.into = std::make_unique<Buffer>(rank.node().transport(), kMessageMax);
    }
    for (size_t i = 0; i < 2 * kMessageMax; ++i) {
      added_.push_back(static_cast<std::byte>(static_cast<uint8_t>(source_.data()[i]) + kAdded));
    }
  }

  int Run() {
    start_ = moved_ = Now();
    while (!(told_end_ && end_came_ && finished_ == sent_)) {
      if (int status = Turn(); status != 0) return status;
    }
    Report();
    return 0;
  }

 private:
  struct Slot {
    Request send, receive;
    double posted_at = 0;
    std::unique_ptr<Buffer> into;
  };
  Slot& slot(uint64_t number) { return slots_[number % kWindow]; }

  int Turn() {
    Fill();
    bool done = false;
    DriveUntil(
        {&rank_.node()}, [&] { return (done = SomethingDone()); }, absl::Milliseconds(200));
    if (done) moved_ = Now();
    if (const absl::Status status = Harvest(); !status.ok()) {
      Report();
      const bool wrong = absl::IsDataLoss(status);
      std::printf("%s %.3f %s\n", wrong ? "wrong" : "broken", Uptime(), status.ToString().c_str());
      return wrong ? 4 : 3;
    }
    if (Now() - moved_ < limit_) return 0;
    Report();
    std::printf("hang %.3f out: %s; in: %s\n", Uptime(), rank_.out()->Describe().c_str(),
                rank_.in()->Describe().c_str());
    return 5;
  }

  void Fill() {
    while (!told_end_ && sent_ < finished_ + kWindow) {
      Slot& to = slot(sent_);
      const Message message(seed_, rank_.rank(), sent_, bytes_max_);
      const bool end = Now() - start_ >= time_;
      const RegionView view = source_.view().Slice(message.from, end ? 0 : message.bytes);
      if (rank_.out()->PostSend({1, 0}, view, &to.send) != Posted::kAccepted) return;
      told_end_ = end;
      to.posted_at = Uptime();
      ++sent_;
    }
    while (!end_came_ && posted_ < received_ + kWindow) {
      Slot& to = slot(posted_);
      const Message message(seed_, 1 - rank_.rank(), posted_, bytes_max_);
      ReceiveTarget target{to.into->view().Slice(0, message.bytes)};
      if (message.reduce) target.local = local_.data(), target.reduce = AddBytes;
      std::memset(to.into->data(), 0xEE, message.bytes);
      if (rank_.in()->PostReceive({1, 0}, target, &to.receive) != Posted::kAccepted) return;
      ++posted_;
    }
  }

  bool SomethingDone() {
    return (finished_ < sent_ && slot(finished_).send.done()) ||
           (!end_came_ && received_ < posted_ && slot(received_).receive.done());
  }

  absl::Status Harvest() {
    for (; finished_ < sent_ && slot(finished_).send.done(); ++finished_) {
      Slot& from = slot(finished_);
      WEFT_RETURN_IF_ERROR(from.send.status());
      sent_bytes_ += from.send.bytes();
      slowest_ = std::max(slowest_, {Uptime() - from.posted_at, from.posted_at});
    }
    for (; !end_came_ && received_ < posted_ && slot(received_).receive.done(); ++received_) {
      WEFT_RETURN_IF_ERROR(slot(received_).receive.status());
      const double now = Uptime();
      if (received_ == 0) std::puts("going"), std::fflush(stdout);
      if (received_ > 0) gap_ = std::max(gap_, {now - last_, last_});
      last_ = now;
      end_came_ = slot(received_).receive.bytes() == 0;
      if (!end_came_) WEFT_RETURN_IF_ERROR(Check(received_));
    }
    return absl::OkStatus();
  }

  absl::Status Check(uint64_t number) {
    const Slot& there = slot(number);
    const Message message(seed_, 1 - rank_.rank(), number, bytes_max_);
    if (there.receive.bytes() != message.bytes) {
      return absl::DataLossError(absl::StrCat("message ", number, " has ", there.receive.bytes(),
                                              " bytes of ", message.bytes));
    }
    const std::byte* right = (message.reduce ? added_.data() : source_.data()) + message.from;
    for (size_t i = 0; i < message.bytes; ++i) {
      if (there.into->data()[i] == right[i]) continue;
      return absl::DataLossError(
          absl::StrCat("byte ", i, " of message ", number, " of ", message.bytes, " bytes is ",
                       static_cast<int>(there.into->data()[i]), " instead of ",
                       static_cast<int>(right[i]), message.reduce ? " (reduced)" : ""));
    }
    received_bytes_ += message.bytes;
    return absl::OkStatus();
  }

  void Report() const {
    std::printf("sent %llu %llu, received %llu %llu\n", static_cast<unsigned long long>(finished_),
                static_cast<unsigned long long>(sent_bytes_),
                static_cast<unsigned long long>(received_),
                static_cast<unsigned long long>(received_bytes_));
    std::printf("slowest %.0f from %.3f\n", slowest_.first * 1e3, slowest_.second);
    std::printf("gap %.0f from %.3f\n", gap_.first * 1e3, gap_.second);
  }

  TestRank& rank_;
  const uint64_t seed_;
  const size_t bytes_max_;
  const absl::Duration time_, limit_;
  Buffer source_;
  std::vector<std::byte> local_, added_;  // the other operand of reductions, and source_ after it
  std::array<Slot, kWindow> slots_;
  absl::Time start_, moved_;
  uint64_t sent_ = 0, finished_ = 0, posted_ = 0, received_ = 0;
  uint64_t sent_bytes_ = 0, received_bytes_ = 0;
  bool told_end_ = false, end_came_ = false;
  double last_ = 0;
  std::pair<double, double> slowest_{0, 0}, gap_{0, 0};  // how long, from when
};

int Number(const std::vector<std::string>& steps, const std::string& name, int otherwise) {
  for (const std::string& step : steps) {
    int value = 0;
    if (step.rfind(name + ":", 0) != 0) continue;
    WEFT_CHECK(absl::SimpleAtoi(step.substr(name.size() + 1), &value), step);
    return value;
  }
  return otherwise;
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  using namespace weft::net;  // NOLINT
  const TestRankArguments arguments = ParseTestRank(argc, argv);
  TestRank rank(arguments.rank, arguments.file, arguments.settings);
  Stream stream(rank, static_cast<uint64_t>(Number(arguments.steps, "seed", 1)),
                static_cast<size_t>(Number(arguments.steps, "bytes", kMessageMax)),
                absl::Seconds(Number(arguments.steps, "seconds", 4)),
                absl::Seconds(Number(arguments.steps, "limit", 30)));
  const int status = stream.Run();
  std::fflush(stdout);
  if (status == 3) {  // so that the other side hears why
    DriveUntil(
        {&rank.node()}, [] { return false; }, absl::Seconds(1));
  } else if (status ==
             0) {  // until the other side is through as well: its sends want this side's word
    WEFT_CHECK(rank.out()->PostNotice("through") == Posted::kAccepted, "");
    DriveUntil({&rank.node()}, [&] { return !rank.node().notices.empty(); });
    DriveUntil(
        {&rank.node()}, [] { return false; }, absl::Milliseconds(100));
  }
  std::_Exit(status);  // with receives posted that nobody sends to
}
