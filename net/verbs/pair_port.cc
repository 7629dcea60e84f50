#include "net/verbs/pair_port.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/verbs/pair_paths.h"

namespace weft::net::multipath {
namespace {

constexpr uint32_t kReceivesMin = 256, kReceivesMax = 1 << 14;
constexpr size_t kRepostAt = 16;  // receives are posted so many at once

}  // namespace

size_t SlotBytesOf(uint32_t chunk, uint32_t room) {
  return AlignedPacket(std::max(kBeforeChunk + chunk + room, kDatagramHeaderMax));
}

uint32_t ReceivesOf(const PairOptions& options) {
  const auto slots = static_cast<uint64_t>(options.buffer_bytes.count()) /
                     SlotBytesOf(options.chunk_max, options.room);
  return static_cast<uint32_t>(std::clamp<uint64_t>(slots, kReceivesMin, kReceivesMax));
}

uint32_t SendSlotsOf(const PairOptions& options) {
  const auto slots =
      static_cast<uint32_t>(kSendBytes / SlotBytesOf(options.chunk_max, options.room));
  return std::clamp(slots, kSendSlotsMin, kSendSlotsMax);
}

PairPort::PairPort(std::shared_ptr<Rails> rails, const PairOptions& options)
    : rails_(std::move(rails)),
      options_(options),
      slot_bytes_(SlotBytesOf(options.chunk_max, options.room)) {
  // Numbers that no other life of this process is likely to have used.
  const Nonce random = NewNonce();
  std::memcpy(&next_link_, random.data(), sizeof next_link_);
}

PairPort::~PairPort() {
  rails_->DropSharedReceives();
  for (RailState& state : states_) {
    for (Slots* slots : {&state.receives, &state.sends}) {
      if (slots->keys == nullptr) continue;
      rails_->memory().Release(slots->keys, slots->memory.get(), slots->bytes);
    }
  }
}

absl::StatusOr<PairPort::Slots> PairPort::MakeSlots(uint32_t count) {
  Slots out;
  const size_t bytes = out.bytes = count * slot_bytes_;
  WEFT_ASSIGN_OR_RETURN(out.memory, MapOwnPages(bytes));
  WEFT_ASSIGN_OR_RETURN(out.keys, rails_->memory().Acquire(out.memory.get(), bytes, false));
  return out;
}

absl::StatusOr<std::unique_ptr<PairPort>> PairPort::Open(std::shared_ptr<Rails> rails,
                                                         const PairOptions& options) {
  std::unique_ptr<PairPort> out(new PairPort(std::move(rails), options));
  Rails& all = out->rails();
  const uint32_t receives = ReceivesOf(options), sends = SendSlotsOf(options);
  out->receives_ = receives;
  WEFT_RETURN_IF_ERROR(all.ShareReceives(out.get(), receives));
  out->states_.resize(static_cast<size_t>(all.size()));
  for (int rail = 0; rail < all.size(); ++rail) {
    RailState& state = out->states_[static_cast<size_t>(rail)];
    WEFT_ASSIGN_OR_RETURN(state.receives, out->MakeSlots(receives));
    WEFT_ASSIGN_OR_RETURN(state.sends, out->MakeSlots(sends));
    for (uint32_t slot = sends; slot-- > 0;) state.free.push_back(slot);
    for (uint32_t slot = 0; slot < receives; ++slot) state.unposted.push_back(slot);
    out->PostReceives(rail);
    if (!state.unposted.empty()) {
      return absl::UnavailableError(
          absl::StrCat(all[rail].device->name(), " takes ", receives - state.unposted.size(),
                       " of ", receives, " receives; multipath.buffer_bytes makes them fewer"));
    }
  }
  return out;
}

std::unique_ptr<LinkPaths> PairPort::OpenLink(DatagramOwner& owner, const LinkEnds& ends) {
  while (links_.count(next_link_) > 0) ++next_link_;
  auto out = std::make_unique<PairPaths>(*this, owner, next_link_, ends);
  links_[next_link_++] = out.get();
  return out;
}

bool PairPort::Poll(absl::Time now) {
  now_ = now;
  const bool moved = rails_->Poll();
  for (int rail = 0; rail < rails_->size(); ++rail) PostReceives(rail);
  if (!blocked_.empty()) FreeStuck();
  if (!std::exchange(freed_, false)) return moved;
  for (PairPaths* paths : std::exchange(blocked_, {})) {
    paths->is_blocked_ = false;
    paths->owner_.OnWritable();
  }
  return moved;
}

void PairPort::FreeStuck() {
  for (size_t rail = 0; rail < states_.size(); ++rail) {
    if (!states_[rail].free.empty()) continue;
    PairPaths* holder = nullptr;
    size_t which = 0, most = 0;
    for (const auto& [number, paths] : links_) {
      for (size_t i = 0; i < paths->paths_.size(); ++i) {
        const size_t held = paths->HeldInVain(i, static_cast<int>(rail));
        if (held > most) holder = paths, which = i, most = held;
      }
    }
    if (holder != nullptr) holder->LoseStuck(which);
  }
}

void PairPort::PostReceives(int rail) {
  RailState& state = states_[static_cast<size_t>(rail)];
  const uint32_t key = state.receives.keys->keys[static_cast<size_t>(rail)].local_key;
  while (!state.unposted.empty()) {
    std::array<NicReceive, kRepostAt> batch;
    const size_t count = std::min(batch.size(), state.unposted.size());
    for (size_t i = 0; i < count; ++i) {
      const uint32_t slot = state.unposted[state.unposted.size() - 1 - i];
      batch[i] = {Rails::SharedReceiveId(rail, slot),
                  state.receives.memory.get() + slot * slot_bytes_,
                  static_cast<uint32_t>(slot_bytes_), key};
    }
    absl::Status posted = (*rails_)[rail].receives->Post(absl::MakeConstSpan(batch.data(), count));
    if (!posted.ok()) {  // at the next poll again
      WEFT_LOG_DEBUG("multipath: ", posted.message());
      return;
    }
    state.unposted.resize(state.unposted.size() - count);
  }
}

void PairPort::OnReceived(int rail, uint32_t slot, const NicCompletion& what) {
  RailState& state = states_[static_cast<size_t>(rail)];
  if (slot >= receives_) return;
  if (what.status == NicStatus::kOk && what.bytes <= slot_bytes_) {
    const std::byte* begin = state.receives.memory.get() + slot * slot_bytes_;
    auto message = absl::MakeConstSpan(begin, what.bytes);
    while (!message.empty() && Take(TakePacket(&message))) continue;
  } else {
    ++statistics_.receive_errors;  // of a message that was cut off, or a queue pair that failed
  }
  state.unposted.push_back(slot);
  if (state.unposted.size() >= kRepostAt) PostReceives(rail);
}

// False: it is not authentic, nor is what follows it.
bool PairPort::Take(absl::Span<const std::byte> packet) {
  ++statistics_.received;
  uint32_t link = 0;
  auto found = LinkOf(packet, &link) ? links_.find(link) : links_.end();
  if (found == links_.end() || !IsSealed(packet, found->second->owner_.key())) {
    ++statistics_.unauthenticated;
    return false;
  }
  found->second->heard_at_ = now_;
  found->second->owner_.OnDatagram(ReceivedOf(packet, /*marked=*/false, now_, now_));
  return true;
}

}  // namespace weft::net::multipath
