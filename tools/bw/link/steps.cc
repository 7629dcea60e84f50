#include "tools/bw/link/steps.h"

#include <algorithm>

#include "base/status.h"

namespace weft::link_bw {
namespace {

constexpr int kNcclSteps = 8;
constexpr int64_t kPointToPointChunk = 128 << 10;
constexpr int64_t kSliceGrain = 16;     // elements of one byte
constexpr int64_t kSliceShareMin = 32;  // a slice is not shorter than this part of its steps
constexpr size_t kTimesMax = 1 << 20;
constexpr uint64_t kFirstTag = 16;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Shape {
  int chunk_steps, slice_steps;
};
Shape ShapeOf(CollectiveKind collective) {
  const bool one =
      collective == CollectiveKind::kBroadcast || collective == CollectiveKind::kSendReceive;
  return one ? Shape{1, 1} : Shape{kNcclSteps / 2, kNcclSteps / 4};
}

// One chunk, cut into slices; appends them to whatever `add` keeps.
template <typename Add>
void Cut(int64_t chunk, int64_t step_bytes, Shape shape, const Add& add) {
  const int64_t slices = shape.chunk_steps / shape.slice_steps;
  const int64_t whole = step_bytes * shape.slice_steps;
  const int64_t slice = std::min(
      whole, std::max(DivideUp(chunk, kSliceGrain * slices) * kSliceGrain, whole / kSliceShareMin));
  for (int64_t i = 0; i < slices; ++i) {
    // A slice that has nothing left is sent all the same: with 0 bytes.
    add(std::clamp<int64_t>(chunk - i * slice, 0, slice));
  }
}

}  // namespace

ChannelPlan PlanChannel(const Load& load, Bytes bytes, int rank, int ranks) {
  const CollectiveKind what = load.collective;
  const Shape shape = ShapeOf(what);
  ChannelPlan plan;
  int64_t step_bytes = load.channel_bytes.count() / kNcclSteps;
  if (what == CollectiveKind::kSendReceive) step_bytes = std::min(step_bytes, kPointToPointChunk);
  plan.in_flight = kNcclSteps / shape.slice_steps;
  plan.slot_bytes = step_bytes * shape.slice_steps;
  const int64_t chunk_max = step_bytes * shape.chunk_steps;
  // Parts of the buffer that pass a rank: every rank's in those with parts, else the whole.
  const bool parts = what == CollectiveKind::kAllReduce || what == CollectiveKind::kAllGather ||
                     what == CollectiveKind::kReduceScatter;
  const int64_t of_channel = DivideUp(bytes.count(), load.channels);
  const int64_t of_part = parts ? DivideUp(of_channel, ranks) : of_channel;
  const bool chain = what == CollectiveKind::kBroadcast;
  const int place = (rank - load.root + ranks) % ranks;  // in the chain
  const bool receives = !chain || place > 0, sends = !chain || place < ranks - 1;
  const int rounds = what == CollectiveKind::kAllReduce ? 2 * (ranks - 1) : parts ? ranks - 1 : 1;
  const bool passes_on = parts || chain;
  for (int64_t at = 0; at < of_part || at == 0; at += chunk_max) {
    const int64_t chunk = std::min(chunk_max, of_part - at);
    const auto first_receive = static_cast<int64_t>(plan.receives.size());
    if (receives) {
      for (int round = 0; round < rounds; ++round) {
        Cut(chunk, step_bytes, shape, [&](int64_t slice) { plan.receives.push_back({slice}); });
      }
    }
    if (!sends) continue;
    const int slices = shape.chunk_steps / shape.slice_steps;
    for (int round = 0; round < rounds; ++round) {
      int64_t number = 0;
      Cut(chunk, step_bytes, shape, [&](int64_t slice) {
        int64_t after = -1;
        if (chain && receives) after = first_receive + number;
        if (!chain && passes_on && round > 0) after = first_receive + (round - 1) * slices + number;
        if (after >= 0) plan.receives[static_cast<size_t>(after)].passed_on = true;
        plan.sends.push_back({slice, after});
        ++number;
      });
    }
  }
  return plan;
}

double BusFactor(CollectiveKind collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

absl::StatusOr<std::unique_ptr<Steps>> Steps::Create(MeasuredLinks& links, const Load& load,
                                                     Bytes bytes, int rank, int ranks) {
  std::unique_ptr<Steps> steps(new Steps(links, rank, ranks));
  for (int number = 0; number < load.channels; ++number) {
    ChannelPlan plan = PlanChannel(load, bytes, rank, ranks);
    auto channel = std::make_unique<Channel>(plan.in_flight);
    const auto slot = static_cast<size_t>(plan.slot_bytes);
    WEFT_ASSIGN_OR_RETURN(channel->send_slots,
                          Slots::Allocate(links.transport(), slot, plan.in_flight));
    WEFT_ASSIGN_OR_RETURN(channel->receive_slots,
                          Slots::Allocate(links.transport(), slot, plan.in_flight));
    for (const ChannelPlan::Send& send : plan.sends) steps->sent_bytes_ += send.bytes;
    channel->plan = std::move(plan);
    steps->channels_.push_back(std::move(channel));
  }
  return steps;
}

bool Steps::Done(const Channel& channel) {
  return channel.send_done == channel.send_base + static_cast<int64_t>(channel.plan.sends.size()) &&
         channel.consumed ==
             channel.receive_base + static_cast<int64_t>(channel.plan.receives.size());
}

absl::Status Steps::PumpReceives(int number, Channel& channel) {
  const auto count = static_cast<int64_t>(channel.plan.receives.size());
  while (channel.received < channel.posted && channel.receives[channel.received].done()) {
    WEFT_RETURN_IF_ERROR(channel.receives[channel.received].status());
    ++channel.received;
  }
  while (channel.posted < channel.receive_base + count &&
         channel.posted - channel.consumed < channel.receives.depth()) {
    const int slot = static_cast<int>(channel.posted % channel.receives.depth());
    const int64_t bytes =
        channel.plan.receives[static_cast<size_t>(channel.posted - channel.receive_base)].bytes;
    net::ReceiveTarget target;
    target.out = channel.receive_slots.view(slot, static_cast<size_t>(bytes));
    const net::MessageKey key{.tag = kFirstTag + static_cast<uint64_t>(number)};
    if (links_.from((rank_ + ranks_ - 1) % ranks_)
            .PostReceive(key, target, &channel.receives[channel.posted]) == net::Posted::kNotYet) {
      break;
    }
    ++channel.posted;
  }
  return absl::OkStatus();
}

absl::Status Steps::PumpSends(int number, Channel& channel) {
  while (channel.send_done < channel.sent && channel.sends[channel.send_done].done()) {
    WEFT_RETURN_IF_ERROR(channel.sends[channel.send_done].status());
    if (send_times_.size() < kTimesMax) {
      send_times_.push_back(
          links_.now() -
          channel.posted_at[static_cast<size_t>(channel.send_done % channel.sends.depth())]);
    }
    ++channel.send_done;
  }
  const auto count = static_cast<int64_t>(channel.plan.sends.size());
  while (channel.sent < channel.send_base + count &&
         channel.sent - channel.send_done < channel.sends.depth()) {
    const ChannelPlan::Send& send =
        channel.plan.sends[static_cast<size_t>(channel.sent - channel.send_base)];
    if (send.after >= 0 && channel.received <= channel.receive_base + send.after) break;
    const int slot = static_cast<int>(channel.sent % channel.sends.depth());
    const net::MessageKey key{.tag = kFirstTag + static_cast<uint64_t>(number)};
    if (links_.to((rank_ + 1) % ranks_)
            .PostSend(key, channel.send_slots.view(slot, static_cast<size_t>(send.bytes)),
                      &channel.sends[channel.sent]) == net::Posted::kNotYet) {
      break;
    }
    channel.posted_at[static_cast<size_t>(slot)] = links_.now();
    // What it passes on has left the receive buffer for the send buffer.
    if (send.after >= 0) {
      channel.consumed = std::max(channel.consumed, channel.receive_base + send.after + 1);
    }
    ++channel.sent;
  }
  return absl::OkStatus();
}

absl::Status Steps::Pump(int number, Channel& channel) {
  WEFT_RETURN_IF_ERROR(PumpReceives(number, channel));
  WEFT_RETURN_IF_ERROR(PumpSends(number, channel));
  // Receives that nothing passes on are done with at once.
  const auto passed_on = [&channel] {
    return channel.plan.receives[static_cast<size_t>(channel.consumed - channel.receive_base)]
        .passed_on;
  };
  while (channel.consumed < channel.received && !passed_on()) ++channel.consumed;
  return absl::OkStatus();
}

absl::Status Steps::Run(int64_t count) {
  for (int64_t operation = 0; operation < count; ++operation) {
    for (auto& channel : channels_) {
      channel->send_base = channel->sent;
      channel->receive_base = channel->posted;
    }
    for (bool done = false; !done;) {
      done = true;
      for (size_t i = 0; i < channels_.size(); ++i) {
        WEFT_RETURN_IF_ERROR(Pump(static_cast<int>(i), *channels_[i]));
        done &= Done(*channels_[i]);
      }
      if (!done) WEFT_RETURN_IF_ERROR(links_.Turn());
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::link_bw
