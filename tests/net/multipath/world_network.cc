#include "tests/net/multipath/world_network.h"

#include <algorithm>
#include <utility>

namespace weft::net::multipath {

WorldSetup DrawWorld(Random& random) {
  WorldSetup setup;
  auto chance = [&](double often, double most) {
    return random.Uniform() < often ? random.Uniform() * most : 0;
  };
  setup.paths = 1 + static_cast<int>(random.Below(8));
  setup.messages = 4 + static_cast<int>(random.Below(40));
  setup.chunk = 64u << random.Below(6);
  setup.numbers = 64u << random.Below(4);
  setup.window = 1u << random.Below(7);
  auto kinds = AllControllers();
  setup.controller.kind = kinds[random.Below(kinds.size())];
  setup.by_credit = setup.controller.kind == ControllerKind::kCredit;
  auto policies = AllPolicies();
  setup.policy = policies[random.Below(policies.size())];
  setup.loss = chance(0.7, 0.1);
  setup.reorder = chance(0.5, 0.3);
  setup.duplicate = chance(0.5, 0.1);
  setup.corrupt = chance(0.3, 0.05);
  setup.mark = chance(0.5, 0.5);
  setup.trim = chance(0.2, 0.1);
  setup.too_long = chance(0.2, 0.1);
  setup.ack_every = 1 + static_cast<int>(random.Below(8));
  setup.weighs_paths = random.Below(2) == 0;
  setup.size_max = 8 + random.Below(setup.chunk * 40);
  absl::Duration faulty = absl::Milliseconds(static_cast<int64_t>(1 + random.Below(30)));
  setup.healed = WorldSetup::Start() + faulty;
  setup.restarts = random.Below(4) == 0 ? 1 + static_cast<int>(random.Below(3)) : 0;
  for (uint64_t i = random.Below(6); i > 0; --i) {
    absl::Time from = WorldSetup::Start() + faulty * random.Uniform();
    absl::Time until = std::min(setup.healed, from + faulty * random.Uniform());
    bool is_partition = random.Below(4) == 0;
    int path =
        is_partition ? -1 : static_cast<int>(random.Below(static_cast<uint64_t>(setup.paths)));
    int side = static_cast<int>(random.Below(3)) - 1;
    setup.faults.push_back({from, until, path, side, random.Below(3) == 0});
  }
  return setup;
}

void WorldNetwork::DrawDelays() {
  path_delay_.resize(static_cast<size_t>(setup_.paths));
  for (absl::Duration& delay : path_delay_) {
    delay = absl::Microseconds(2 + 10 * random_.Uniform());
  }
}

void WorldNetwork::Transmit(absl::Time now, const std::string& bytes, int side, int path) {
  ++result_.packets;
  Flying flying{bytes, side};
  absl::Time at =
      now + path_delay_[static_cast<size_t>(path)] + bytes.size() / 1.25 * absl::Nanoseconds(1);
  if (now < setup_.healed) {
    for (const Fault& fault : setup_.faults) {
      bool hits = now >= fault.from && now < fault.until &&
                  (fault.path < 0 || fault.path == path) && (fault.side < 0 || fault.side == side);
      if (!hits) continue;
      if (!fault.is_pause) {
        ++result_.lost;
        return;
      }
      at = std::max(at, fault.until + absl::Microseconds(1));
    }
    if (random_.Uniform() < setup_.loss) {
      ++result_.lost;
      return;
    }
    if (random_.Uniform() < setup_.reorder) at += absl::Microseconds(100 * random_.Uniform());
    if (random_.Uniform() < setup_.corrupt) {
      size_t bit = random_.Below(flying.bytes.size() * 8);
      flying.bytes[bit / 8] = static_cast<char>(flying.bytes[bit / 8] ^ (1 << (bit % 8)));
    }
    flying.marked = random_.Uniform() < setup_.mark;
    flying.trimmed = side == kToReceiver && random_.Uniform() < setup_.trim;
    if (random_.Uniform() < setup_.duplicate) {
      flying_.emplace(at + absl::Microseconds(50 * random_.Uniform()), flying);
    }
  }
  flying_.emplace(at, std::move(flying));
}

Flying WorldNetwork::Take() {
  Flying flying = std::move(flying_.begin()->second);
  flying_.erase(flying_.begin());
  return flying;
}

}  // namespace weft::net::multipath
