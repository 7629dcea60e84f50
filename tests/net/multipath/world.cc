#include "tests/net/multipath/world.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "net/cc/credit.h"
#include "net/multipath/receiver.h"
#include "net/multipath/sender.h"
#include "tests/net/multipath/world_network.h"

namespace weft::net::multipath {
namespace {

const absl::Time kStart = WorldSetup::Start();
constexpr int64_t kEventsMax = 3'000'000;
constexpr int kPassedMax = 100;
constexpr absl::Duration kTimeToEnd = absl::Seconds(60);  // once healed, simulated

class World {
 public:
  World(uint64_t seed, bool log)
      : random_(seed), log_(log), setup_(DrawWorld(random_)), network_(setup_, random_, result_) {
    for (int i = 0; i < setup_.restarts; ++i) {
      restarts_.insert(kStart + (setup_.healed - kStart) * random_.Uniform());
    }
    network_.DrawDelays();
    StartSender();
    StartReceiver();
  }

  WorldResult Run() {
    int64_t events = 0;
    while (error_.empty() && !IsOver()) {
      if (++events > kEventsMax) Fail("no end of events");
      if (now_ > setup_.healed + kTimeToEnd) Fail("not through a minute after healing");
      Step();
    }
    if (error_.empty()) CheckEnd();
    result_.error = error_;
    result_.drawn = absl::StrFormat(
        "%d paths%s, %s, %s, chunks of %u, %u numbers, %u receives, %d messages up to %u B, "
        "%d faults, %d restarts, loss %.2f reorder %.2f duplicate %.2f corrupt %.2f trim %.2f",
        setup_.paths, setup_.weighs_paths ? " weighed" : "", ToString(setup_.controller),
        ToString(setup_.policy), setup_.chunk, setup_.numbers, setup_.window, setup_.messages,
        setup_.size_max, setup_.faults.size(), setup_.restarts, setup_.loss, setup_.reorder,
        setup_.duplicate, setup_.corrupt, setup_.trim);
    result_.simulated_seconds = absl::ToDoubleSeconds(now_ - kStart);
    result_.retransmissions += sender_->statistics().retransmissions;
    return result_;
  }

 private:
  static constexpr Bandwidth kBandwidth = Bandwidth::GigabitsPerSecond(10);
  // What the sending application wants: one Send() of it is an attempt.
  struct Attempt {
    uint64_t size = 0;
    int life = 0;  // of the sender
    bool ended = false, arrived = false;
    std::vector<std::byte> bytes;
  };
  struct Receive {
    int life = 0;
    bool ended = false;
    std::vector<std::byte> buffer;
  };

  void Fail(const std::string& what) {
    if (error_.empty()) {
      error_ = absl::StrCat(absl::FormatDuration(now_ - kStart), ": ", what, "; ", ended_well_,
                            " of ", setup_.messages, " delivered, sender ",
                            static_cast<int>(sender_->state()), " with ", sender_->outstanding(),
                            " outstanding, receiver ", static_cast<int>(receiver_->state()));
    }
  }
  void Log(const std::string& line) {
    if (log_) absl::PrintF("%10.3f us  %s\n", absl::ToDoubleMicroseconds(now_ - kStart), line);
  }

  // ---- Processes

  void StartSender() {
    if (sender_) result_.retransmissions += sender_->statistics().retransmissions;
    SenderOptions options;
    options.peer = "the receiver";
    options.incarnation = ++incarnations_ * 1000;
    options.chunk = setup_.chunk;
    options.numbers = setup_.numbers;
    options.messages = 1 + static_cast<uint32_t>(random_.Below(64));
    options.facts = {.base_rtt = absl::Microseconds(25),
                     .bandwidth = kBandwidth,
                     .packet = Bytes(setup_.chunk + options.overhead),
                     .hops = 2};
    options.controller = setup_.controller;
    options.paths.paths = setup_.paths;
    options.weighs_paths = setup_.weighs_paths;
    if (setup_.weighs_paths) {
      options.paths.slow_factor = 2;
      options.paths.slow_slack = absl::Microseconds(10);
    }
    options.policy.kind = setup_.policy;
    options.piece = Bytes(static_cast<int64_t>(random_.Below(4)) * setup_.chunk);
    options.timeout_min = absl::Microseconds(100);
    options.timeout_max = absl::Milliseconds(50);
    options.keepalive = absl::Milliseconds(100);
    sender_ = std::make_unique<Sender>(options, now_);
    ++sender_life_;
  }

  void StartReceiver() {
    ReceiverOptions options;
    options.peer = "the sender";
    options.incarnation = ++incarnations_ * 1000;
    options.messages = setup_.window;
    options.ack_every = setup_.ack_every;
    options.recycles_ways = setup_.weighs_paths;
    options.grants_credit = setup_.by_credit;
    options.credit = 4 * uint64_t{setup_.chunk};
    receiver_ = std::make_unique<Receiver>(options, now_);
    ++receiver_life_;
    // The pacer is of the receiving process: what the last one still had to grant ends with it.
    credits_.emplace(kBandwidth, Bytes(8192));
    granted_to_ = 0;
  }

  void Restart() {
    ++result_.restarts;
    bool is_sender = random_.Below(2) == 0;
    Log(is_sender ? "the sender restarts" : "the receiver restarts");
    if (is_sender) {
      StartSender();
    } else {
      StartReceiver();
    }
  }

  // ---- Applications

  void SendMore() {
    while (ended_well_ + refused_ + in_progress() < setup_.messages) {
      Attempt attempt;
      attempt.size = random_.Below(8) == 0 ? 0 : 8 + random_.Below(setup_.size_max - 7);
      attempt.life = sender_life_;
      attempt.bytes.resize(attempt.size);
      uint64_t state = attempts_.size() + 1;
      for (uint64_t i = 0; i < attempt.size; i += 8) {
        uint64_t word = SplitMix64(state);
        std::memcpy(&attempt.bytes[i], &word, std::min<uint64_t>(8, attempt.size - i));
      }
      attempts_.push_back(std::move(attempt));
      Attempt& placed = attempts_.back();
      if (!sender_->Send(attempts_.size() - 1, placed.bytes.data(), placed.size)) {
        attempts_.pop_back();
        return;
      }
      ++open_;
    }
    if (ended_well_ + refused_ >= setup_.messages) sender_->Close();
  }
  int in_progress() const { return open_; }

  void PostMore() {
    if (receiver_->state() == ConnectionState::kClosed) return;
    while (true) {
      Receive receive;
      receive.life = receiver_life_;
      uint64_t capacity = setup_.size_max;
      if (random_.Uniform() < setup_.too_long) capacity = random_.Below(capacity);
      receive.buffer.resize(capacity);
      receives_.push_back(std::move(receive));
      if (!receiver_->Post(receives_.size() - 1, receives_.back().buffer.data(), capacity)) {
        receives_.pop_back();
        return;
      }
    }
  }

  void TakeSent() {
    Completion done;
    while (sender_->TakeCompletion(done)) {
      Attempt& attempt = attempts_[done.cookie];
      if (attempt.ended) Fail(absl::StrCat("message ", done.cookie, " has ended twice"));
      if (attempt.life != sender_life_) Fail("a completion from an earlier life");
      attempt.ended = true;
      --open_;
      ++result_.messages;
      if (done.status.ok()) {
        ++ended_well_;
        bool arrived = attempt.size == 0 ? ++empty_ended_ <= empty_arrived_ : attempt.arrived;
        if (!arrived) Fail(absl::StrCat("message ", done.cookie, " never arrived"));
      } else {
        ++result_.failed;
        if (absl::IsOutOfRange(done.status)) {
          ++refused_;
          if (setup_.too_long == 0) Fail("refused for its length, though no receive is short");
        } else if (result_.restarts == 0) {
          Fail(absl::StrCat("nothing restarted: ", done.status.ToString()));
        }
      }
    }
  }

  void TakeReceived() {
    Completion done;
    while (receiver_->TakeCompletion(done)) {
      Receive& receive = receives_[done.cookie];
      if (receive.ended) Fail(absl::StrCat("receive ", done.cookie, " has ended twice"));
      receive.ended = true;
      if (done.status.ok()) {
        FindContents(done, receive);
      } else if (!absl::IsOutOfRange(done.status) && !absl::IsCancelled(done.status) &&
                 result_.restarts == 0) {
        Fail(absl::StrCat("nothing restarted: ", done.status.ToString()));
      }
    }
  }

  // Which attempt it is: in one connection the receives, as they were posted, take the messages as
  // they were sent. Empty ones are all alike and are only counted.
  void FindContents(const Completion& done, const Receive& receive) {
    if (done.bytes == 0) {
      ++empty_arrived_;
      return;
    }
    auto& order = order_[receiver_->peer_incarnation()];
    for (size_t i = 0; i < attempts_.size(); ++i) {
      Attempt& attempt = attempts_[i];
      if (attempt.arrived || attempt.size != done.bytes) continue;
      if (!std::equal(attempt.bytes.begin(), attempt.bytes.end(), receive.buffer.begin())) continue;
      auto later = order.upper_bound(done.cookie);
      bool fits = (later == order.end() || later->second > i) &&
                  (later == order.begin() || std::prev(later)->second < i);
      if (!fits) Fail(absl::StrCat("message ", i, " came out of its turn"));
      order[done.cookie] = i;
      attempt.arrived = true;
      return;
    }
    Fail(absl::StrCat("receive ", done.cookie, " got ", done.bytes,
                      " bytes that nobody sent, or that came twice"));
  }

  // ---- The network

  void Deliver(const Flying& flying) {
    auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(flying.bytes.data()),
                                     flying.bytes.size());
    auto parsed = Parse(bytes, true);
    if (!parsed.ok()) return;
    if (flying.side == kToSender) return sender_->Receive(parsed->packet, now_);
    bool trimmed = flying.trimmed && parsed->packet.type == PacketType::kData;
    receiver_->Receive({.packet = parsed->packet,
                        .chunk = parsed->chunk.data(),
                        .chunk_bytes = static_cast<uint32_t>(parsed->chunk.size()),
                        .marked = flying.marked,
                        .trimmed = trimmed},
                       now_);
  }

  void Grant() {
    if (!setup_.by_credit) return;
    if (receiver_->peer_incarnation() != granted_to_) {
      granted_to_ = receiver_->peer_incarnation();
      credits_->Add(0, Bytes(4 * int64_t{setup_.chunk}));
    }
    if (granted_to_ == 0) return;
    credits_->Demand(0, Bytes(static_cast<int64_t>(receiver_->demand())));
    while (auto grant = credits_->Next(now_)) {
      receiver_->Grant(static_cast<uint64_t>(grant->limit.count()));
    }
  }

  void Pump() {
    SendMore();
    PostMore();
    Grant();
    Outgoing out;
    std::string bytes;
    int burst = 0;
    while (sender_->Next(now_, out)) {
      if (++burst > 100'000) return Fail("the sender sends without end");
      bytes.clear();
      Write(out.packet, absl::MakeConstSpan(out.chunk, out.chunk_bytes), true, bytes);
      if (log_) LogPacket("->", out.packet);
      network_.Transmit(now_, bytes, kToReceiver, out.packet.path);
    }
    Packet packet;
    burst = 0;
    while (receiver_->Next(now_, packet)) {
      if (++burst > 100'000) return Fail("the receiver answers without end");
      bytes.clear();
      Write(packet, {}, true, bytes);
      if (log_) LogPacket("<-", packet);
      network_.Transmit(now_, bytes, kToSender, packet.path % setup_.paths);
    }
    TakeReceived();
    TakeSent();
  }

  void LogPacket(const char* arrow, const Packet& packet) {
    Log(absl::StrFormat(
        "%s type %d path %d number %u floor %u message %u offset %u base %u "
        "messages %u credit %u",
        arrow, packet.type, packet.path, packet.number, packet.floor, packet.message, packet.offset,
        packet.base, packet.messages, packet.credit));
  }

  // A deadline that has passed is acted upon: one that stays is a loop that never sleeps.
  void CheckDeadlines(absl::Time next, absl::Time granted) {
    bool is_idle = next <= now_ && result_.packets == transmitted_;
    transmitted_ = result_.packets;
    passed_ = is_idle ? passed_ + 1 : 0;
    if (passed_ < kPassedMax) return;
    Fail(absl::StrCat("a deadline stays in the past, and nothing is sent: the ",
                      granted <= now_               ? "credits'"
                      : sender_->deadline() <= now_ ? "sender's"
                                                    : "receiver's"));
  }

  void Step() {
    Pump();
    if (!error_.empty() || IsOver()) return;
    absl::Time granted = setup_.by_credit ? credits_->deadline() : absl::InfiniteFuture();
    absl::Time next = std::min({sender_->deadline(), receiver_->deadline(), granted});
    CheckDeadlines(next, granted);
    next = std::min(next, network_.next());
    if (!restarts_.empty()) next = std::min(next, *restarts_.begin());
    if (next == absl::InfiniteFuture()) return Fail("nothing is left to happen");
    // A deadline that has passed already must not stop the clock.
    now_ = std::max(now_ + absl::Nanoseconds(1), next);
    if (!restarts_.empty() && *restarts_.begin() <= now_) {
      restarts_.erase(restarts_.begin());
      open_ = 0;
      int before = sender_life_;
      Restart();
      // What the dead sender had outstanding is gone with it, unless the receiver restarted.
      if (sender_life_ == before) {
        for (const Attempt& attempt : attempts_) {
          open_ += attempt.life == sender_life_ && !attempt.ended ? 1 : 0;
        }
      }
    }
    while (network_.next() <= now_) {
      Deliver(network_.Take());
      TakeReceived();
      TakeSent();
    }
  }

  bool IsOver() const {
    return sender_->state() == ConnectionState::kClosed && restarts_.empty() &&
           receiver_->state() != ConnectionState::kOpen;
  }

  void CheckEnd() {
    if (sender_->state() == ConnectionState::kBroken) Fail("the sender broke");
    for (size_t i = 0; i < attempts_.size(); ++i) {
      const Attempt& attempt = attempts_[i];
      if (attempt.life == sender_life_ && !attempt.ended) {
        Fail(absl::StrCat("message ", i, " has never ended"));
      }
    }
    if (receiver_->state() == ConnectionState::kClosed) {
      for (size_t i = 0; i < receives_.size(); ++i) {
        if (receives_[i].life == receiver_life_ && !receives_[i].ended) {
          Fail(absl::StrCat("receive ", i, " has never ended"));
        }
      }
    }
  }

  Random random_;
  const bool log_;
  const WorldSetup setup_;
  WorldNetwork network_;
  std::optional<CreditPacer> credits_;
  uint64_t granted_to_ = 0;
  int64_t transmitted_ = 0;  // packets, as of the last step
  int passed_ = 0;           // steps in a row at which a deadline had passed
  absl::Time now_ = kStart;
  std::string error_;
  WorldResult result_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Receiver> receiver_;
  uint64_t incarnations_ = 0;
  int sender_life_ = 0, receiver_life_ = 0;
  std::set<absl::Time> restarts_;
  std::deque<Attempt> attempts_;                          // by cookie
  std::deque<Receive> receives_;                          // by cookie
  std::map<uint64_t, std::map<uint64_t, size_t>> order_;  // by connection: receive, attempt
  int ended_well_ = 0, refused_ = 0, open_ = 0, empty_arrived_ = 0, empty_ended_ = 0;
};

}  // namespace

WorldResult RunWorld(uint64_t seed, bool log) { return World(seed, log).Run(); }

}  // namespace weft::net::multipath
