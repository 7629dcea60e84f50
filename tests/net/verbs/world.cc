#include "tests/net/verbs/world.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/pair_transport.h"
#include "net/verbs/verbs_transport.h"

namespace weft::net {
namespace {

uint8_t PatternOf(size_t message, size_t index, int salt) {
  uint64_t state = message * 1000003 + index / 8 + static_cast<uint64_t>(salt) * 7919;
  return static_cast<uint8_t>(SplitMix64(state) >> (8 * (index % 8)));
}

void AddUp(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    out[i] =
        static_cast<std::byte>(static_cast<uint8_t>(local[i]) + static_cast<uint8_t>(incoming[i]));
  }
}

}  // namespace

ScriptedNode::ScriptedNode(ScriptedFabric& fabric, int rank,
                           const std::vector<ScriptedDeviceOptions>& devices,
                           const std::vector<std::string>& settings, TransportKind kind,
                           const Clock* clock) {
  TransportOptions options;
  options.self = Rank(rank);
  options.world_size = 2;
  options.events = this;
  std::vector<std::string> all = {"tcp.interface==lo", "tcp.family=ipv4", "verbs.devices=host"};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& pair : all) {
    absl::Status set = options.settings.SetPair(pair, "test");
    WEFT_CHECK(set.ok(), set);
  }
  auto created = kind == TransportKind::kVerbs
                     ? VerbsTransport::Create(options, fabric.MakeNic(devices))
                     : multipath::PairTransport::Create(options, fabric.MakeNic(devices), clock);
  created_ = created.status();
  if (created.ok()) transport_ = *std::move(created);
}

ScriptedNode::~ScriptedNode() {
  out.reset();
  accepted.reset();
}

std::string World::Device(int host, int rail) { return absl::StrCat("host", host, "_rail", rail); }

World::World(const WorldOptions& options) : step_(options.step) {
  SetLogLevel(std::getenv("WEFT_TEST_LOG") == nullptr ? LogLevel::kOff : LogLevel::kDebug);
  for (int host : {0, 1}) {
    std::vector<ScriptedDeviceOptions> devices(static_cast<size_t>(options.rails));
    for (int rail = 0; rail < options.rails; ++rail) {
      ScriptedDeviceOptions& device = devices[static_cast<size_t>(rail)];
      device.name = Device(host, rail);
      device.address = static_cast<uint32_t>(0x0A000001 + host * 256 + rail);
      device.resolves_addresses = options.resolves_addresses;
    }
    if (options.tweak) options.tweak(host, &devices);
    std::vector<std::string> settings = options.settings;
    if (options.more_settings) {
      const std::vector<std::string> more = options.more_settings(host);
      settings.insert(settings.end(), more.begin(), more.end());
    }
    (host == 0 ? a : b) =
        std::make_unique<ScriptedNode>(fabric, host, devices, settings, options.kind, &clock_);
  }
}

void World::Turn() {
  clock_.Advance(step_);
  fabric.Advance(step_);
  a->transport().Progress(now());
  b->transport().Progress(now());
}

void World::Turn(ScriptedNode& only) {
  clock_.Advance(step_);
  fabric.Advance(step_);
  only.transport().Progress(now());
}

bool World::Until(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time end = now() + limit;
  while (!condition()) {
    if (now() > end) return false;
    Turn();
  }
  return true;
}

bool World::Sleeps(ScriptedNode& only) {
  constexpr int kTurns = 1000;
  bool sleeps = false;
  for (int turn = 0; turn < kTurns && !sleeps; ++turn) {
    Turn();
    sleeps = only.transport().PrepareWait();
    only.transport().FinishWait();
  }
  return sleeps;
}

void World::LosePair(const std::string& device, uint32_t number) {
  NicEvent event;
  event.kind = NicEventKind::kQueuePairFatal;
  event.queue_pair = number;
  fabric.PushEvent(device, event);
}

bool World::LosePairAndHoldItsSuccessor(int host) {
  const std::string device = Device(host, 0);
  fabric.HoldConnect(device);
  LosePair(device, fabric.QueuePairs(device).at(0));
  return Until([&] { return fabric.held_connects() > 0; }, absl::Hours(1));
}

bool World::Connect(const std::string& address) {
  a->out =
      a->transport().Connect(address.empty() ? b->transport().address() : address, Rank(1), now());
  return Until([&] { return b->accepted != nullptr || !a->out->status().ok(); });
}

const absl::Status& World::broken() const { return a->broken.ok() ? b->broken : a->broken; }

RegisteredBuffers::RegisteredBuffers(World& world, size_t bytes, std::byte fill)
    : from(bytes, fill), to(bytes) {
  auto source = world.a->transport().Register(from.data(), bytes);
  auto target = world.b->transport().Register(to.data(), bytes);
  WEFT_CHECK(source.ok() && target.ok(), source.status() << ", " << target.status());
  from_region = *std::move(source), to_region = *std::move(target);
}

WorldOptions QuickWorld(int rails) {
  WorldOptions options;
  options.rails = rails;
  options.settings = {"verbs.timeout=8",      "verbs.stall_after=20ms", "verbs.give_up_after=1s",
                      "verbs.piece_min=4KiB", "verbs.piece_max=16KiB",  "verbs.queue_pairs=2"};
  return options;
}

// ---- Traffic

Traffic::Traffic(World& world, uint64_t seed, int messages, size_t bytes_max) : world_(world) {
  Random random(seed, 77);
  for (int i = 0; i < messages; ++i) {
    Message& one = messages_.emplace_back();
    const uint64_t kind = random.Below(4);
    one.bytes = kind == 0 ? random.Below(129) : random.Below(kind == 1 ? 5000 : bytes_max);
    one.reduce = random.Below(3) == 0;
    one.from.resize(one.bytes + 1);
    one.to.assign(one.bytes + 65, 0xEE);
    one.local.resize(one.bytes + 1);
    for (size_t k = 0; k < one.bytes; ++k) {
      one.from[k] = PatternOf(messages_.size(), k, 1);
      one.local[k] = PatternOf(messages_.size(), k, 2);
    }
    send_order_.push_back(static_cast<size_t>(i));
    receive_order_.push_back(static_cast<size_t>(i));
  }
  random.Shuffle(send_order_);
  random.Shuffle(receive_order_);
}

void Traffic::Post() {
  ScriptedNode& a = *world_.a;
  ScriptedNode& b = *world_.b;
  const auto ready = [](Transport& transport, void* data, size_t size, Region* region) {
    auto registered = transport.Register(data, size);
    // Else later: a device may be short of memory for a while.
    if (!registered.ok()) return false;
    *region = *std::move(registered);
    return true;
  };
  while (sent_ < messages_.size()) {
    const size_t index = send_order_[sent_];
    Message& one = messages_[index];
    if (!ready(a.transport(), one.from.data(), one.from.size(), &one.from_region)) break;
    const RegionView view = one.from_region.view().Slice(0, one.bytes);
    if (a.out->PostSend({index, 7}, view, &one.send) == Posted::kNotYet) break;
    one.send_posted = true;
    ++sent_;
  }
  for (Message& one : messages_) {
    if (!one.send_posted || !one.send.done() || std::exchange(one.source_gone, true)) continue;
    one.from_region = Region();
    std::fill(one.from.begin(), one.from.end(), 0xDD);
  }
  while (b.accepted != nullptr && received_ < messages_.size()) {
    const size_t index = receive_order_[received_];
    Message& one = messages_[index];
    if (!ready(b.transport(), one.to.data(), one.to.size(), &one.to_region)) break;
    ReceiveTarget target{one.to_region.view().Slice(0, one.bytes)};
    if (one.reduce) {
      target.local = reinterpret_cast<const std::byte*>(one.local.data());
      target.reduce = AddUp;
    }
    if (b.accepted->PostReceive({index, 7}, target, &one.receive) == Posted::kNotYet) break;
    one.receive_posted = true;
    ++received_;
  }
}

bool Traffic::Done() const {
  for (const Message& one : messages_) {
    if (!one.send_posted || !one.send.done()) return false;
    if (world_.b->accepted != nullptr && (!one.receive_posted || !one.receive.done())) return false;
  }
  return true;
}

bool Traffic::AllGood() const {
  for (const Message& one : messages_) {
    const bool posted = one.send_posted && one.receive_posted;
    if (!posted || !one.send.status().ok() || !one.receive.status().ok()) return false;
  }
  return true;
}

const absl::Status& Traffic::FirstError() const {
  for (const Message& one : messages_) {
    for (const Request* request : {&one.send, &one.receive}) {
      if (request->done() && !request->status().ok()) return request->status();
    }
  }
  return none_;
}

std::string Traffic::Check() const {
  for (size_t i = 0; i < messages_.size(); ++i) {
    const Message& one = messages_[i];
    if (!one.receive_posted || !one.receive.done() || !one.receive.status().ok()) continue;
    if (one.receive.bytes() != one.bytes) {
      return absl::StrCat("message ", i, ": ", one.receive.bytes(), " bytes of ", one.bytes);
    }
    for (size_t k = 0; k < one.to.size(); ++k) {
      uint8_t right = 0xEE;
      if (k < one.bytes) right = PatternOf(i + 1, k, 1);
      if (k < one.bytes && one.reduce) right = static_cast<uint8_t>(right + PatternOf(i + 1, k, 2));
      if (one.to[k] != right) {
        return absl::StrCat("message ", i, " of ", one.bytes, one.reduce ? " reduced" : "",
                            " bytes: byte ", k, " is ", one.to[k], " instead of ", right);
      }
    }
  }
  return "";
}

void EndlessTraffic::Run(absl::Duration time) {
  const absl::Time end = world_.now() + time;
  while (world_.now() < end) {
    Post();
    world_.Turn();
  }
}

void EndlessTraffic::Post() {
  while (sent_ < outstanding_ || sends_.front().done()) {
    if (sent_ >= outstanding_) {
      WEFT_CHECK(sends_.front().status().ok(), sends_.front().status());
      sends_.pop_front();
    }
    ++sent_;
    const Posted posted =
        world_.a->out->PostSend({1, 0}, buffers_.from_region.view(), &sends_.emplace_back());
    WEFT_CHECK(posted == Posted::kAccepted, "");
  }
  while (received_ < outstanding_ || receives_.front().done()) {
    if (received_ >= outstanding_) receives_.pop_front();
    ++received_;
    const Posted posted = world_.b->accepted->PostReceive({1, 0}, {buffers_.to_region.view()},
                                                          &receives_.emplace_back());
    WEFT_CHECK(posted == Posted::kAccepted, "");
  }
}

std::string Exchange(World& world, uint64_t seed) {
  Traffic traffic(world, seed, 25, 100000);
  const bool ended = world.Until([&] {
    traffic.Post();
    return traffic.Done();
  });
  std::string out;
  if (!ended) {
    out = "it hangs";
  } else if (!traffic.AllGood()) {
    out = absl::StrCat("error: ", traffic.FirstError().ToString());
  } else {
    out = traffic.Check();
  }
  if (!out.empty()) world.a->out.reset(), world.b->accepted.reset();  // before the traffic goes
  return out;
}

}  // namespace weft::net
