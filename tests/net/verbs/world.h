// Two hosts of a scripted fabric, a verbs link from the first to the second, and time that the test
// moves: no test of faults waits for a clock.
#ifndef WEFT_TESTS_NET_VERBS_WORLD_H_
#define WEFT_TESTS_NET_VERBS_WORLD_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "net/transport.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {

// One rank, and what it was told.
class ScriptedNode final : public TransportEvents {
 public:
  ScriptedNode(ScriptedFabric& fabric, int rank, const std::vector<ScriptedDeviceOptions>& devices,
               const std::vector<std::string>& settings, TransportKind kind = TransportKind::kVerbs,
               const Clock* clock = nullptr);
  ~ScriptedNode() override;

  const absl::Status& created() const { return created_; }
  Transport& transport() { return *transport_; }
  void OnAccepted(std::unique_ptr<ReceiveLink> link) override { accepted = std::move(link); }
  void OnNotice(Link&, absl::string_view) override {}
  void OnBroken(Link&, const absl::Status& status) override { broken = status; }

  void OnMismatch(Link&, const absl::Status& status) override { mismatches.push_back(status); }
  bool Wants(uint64_t tag) override { return tag != unwanted; }

  std::vector<absl::Status> mismatches;
  uint64_t unwanted = UINT64_MAX;  // tag
  std::unique_ptr<ReceiveLink> accepted;
  std::unique_ptr<SendLink> out;
  absl::Status broken;

 private:
  absl::Status created_;
  std::unique_ptr<Transport> transport_;
};

struct WorldOptions {
  int rails = 2;                               // of each host
  TransportKind kind = TransportKind::kVerbs;  // kMultipath: over queue pairs
  std::vector<std::string> settings;
  std::function<std::vector<std::string>(int host)> more_settings;
  std::function<void(int host, std::vector<ScriptedDeviceOptions>*)> tweak;
  // Queue pairs are connected by other threads, which have the machine's time and not the world's.
  bool resolves_addresses = false;
  absl::Duration step = absl::Microseconds(200);  // of time, a turn
};

class World {
 public:
  explicit World(const WorldOptions& options = {});

  // A turn of both ranks; or of one, while the other stands still.
  void Turn();
  void Turn(ScriptedNode& only);
  // Both ranks, and all that is between them, stand still for so long.
  void Stall(absl::Duration time) { clock_.Advance(time); }
  // False when it does not come true within `limit` of the world's time.
  bool Until(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(120));
  // It comes to rest, so that a thread of its own would sleep.
  bool Sleeps(ScriptedNode& only);
  // Until the link stands or is broken at the sending end. By way of `address`, if one is given.
  bool Connect(const std::string& address = "");
  const absl::Status& broken() const;  // why the link broke, at the sending end if at both
  absl::Time now() const { return clock_.Now(); }
  const Clock& clock() const { return clock_; }
  static std::string Device(int host, int rail);  // "host0_rail1"
  // The device says that it has failed.
  void LosePair(const std::string& device, uint32_t number);
  // The first of a host of one rail; true: another thread waits to connect its successor, and does
  // until HoldConnect("").
  bool LosePairAndHoldItsSuccessor(int host);

  ScriptedFabric fabric;

 private:
  absl::Duration step_;
  ManualClock clock_{absl::UnixEpoch() + absl::Hours(1)};

 public:
  std::unique_ptr<ScriptedNode> a, b;
};

// Memory that the first host sends from, each byte `fill`, and as much that the second receives
// into, zeros; registered. Regions that are set to Region() are not any more.
struct RegisteredBuffers {
  RegisteredBuffers(World& world, size_t bytes, std::byte fill = {});
  std::vector<std::byte> from, to;
  Region from_region, to_region;
};

// With short limits, small pieces and two queue pairs.
WorldOptions QuickWorld(int rails = 2);

// Messages of many sizes, stored and reduced, posted in random order.
class Traffic {
 public:
  Traffic(World& world, uint64_t seed, int messages, size_t bytes_max);
  // Posts what it can, and takes the memory of sends that are done away; call it between turns.
  void Post();
  bool Done() const;     // every request has completed
  bool AllGood() const;  // all with OK
  // "" or what is wrong: a byte, a length, a second combination.
  std::string Check() const;
  const absl::Status& FirstError() const;

 private:
  struct Message {
    size_t bytes = 0;
    bool reduce = false;
    std::vector<uint8_t> from, to, local;
    Region from_region, to_region;
    Request send, receive;
    bool send_posted = false, receive_posted = false, source_gone = false;
  };
  World& world_;
  std::deque<Message> messages_;
  std::vector<size_t> send_order_, receive_order_;
  size_t sent_ = 0, received_ = 0;
  absl::Status none_;
};

// Messages without end from the first host to the second, so many outstanding; their data is not
// looked at. The links are gone with it.
class EndlessTraffic {
 public:
  explicit EndlessTraffic(World& world, size_t bytes = 256 << 10, size_t outstanding = 8)
      : world_(world), buffers_(world, bytes), outstanding_(outstanding) {}
  ~EndlessTraffic() { world_.a->out.reset(), world_.b->accepted.reset(); }
  void Run(absl::Duration time);
  size_t received() const { return received_ - receives_.size(); }

 private:
  void Post();

  World& world_;
  RegisteredBuffers buffers_;
  const size_t outstanding_;
  std::deque<Request> sends_, receives_;
  size_t sent_ = 0, received_ = 0;
};

// Sends some; "" when all is there and right, once.
std::string Exchange(World& world, uint64_t seed = 1);

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_VERBS_WORLD_H_
