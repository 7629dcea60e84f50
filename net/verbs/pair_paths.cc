#include "net/verbs/pair_paths.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "net/handshake.h"
#include "net/verbs/explain.h"
#include "topology/ecmp/roce.h"

namespace weft::net::multipath {
namespace {

constexpr uint32_t kReceivesMin = 256, kReceivesMax = 1 << 14;
constexpr uint32_t kSendSlots = 1024;  // of a rail, for all links
constexpr size_t kRepostAt = 16;       // receives are posted so many at once
constexpr uint32_t kSignalEvery = 32;  // and the last of each batch
// A full queue pair of which nothing completes for so long is a dead path, not one to wait for.
constexpr absl::Duration kStuck = absl::Milliseconds(20);
constexpr uint32_t kNumberMask = RailQueuePair::kNumberMask;
constexpr uint32_t kPsnMask = (1u << 24) - 1;

// What a side says of one queue pair, as it lies on the wire, little-endian.
struct PairAddress {
  uint32_t queue_pair = 0, psn = 0;
  uint16_t lid = 0;
  uint8_t ethernet = 0, zero = 0;
  uint32_t mtu = 0;
  Gid gid{};
};
static_assert(sizeof(PairAddress) == kAddressPairBytes &&
              std::endian::native == std::endian::little);

}  // namespace

size_t SlotBytesOf(uint32_t chunk) {
  return (std::max(kBeforeChunk + chunk, kDatagramHeaderMax) + 63) / 64 * 64;
}

uint32_t ReceivesOf(const PairOptions& options) {
  const auto slots =
      static_cast<uint64_t>(options.buffer_bytes.count()) / SlotBytesOf(options.chunk_max);
  return static_cast<uint32_t>(std::clamp<uint64_t>(slots, kReceivesMin, kReceivesMax));
}

// ---- All links

PairPort::PairPort(std::shared_ptr<Rails> rails, const PairOptions& options)
    : rails_(std::move(rails)), options_(options), slot_bytes_(SlotBytesOf(options.chunk_max)) {
  // Numbers that no other life of this process is likely to have used.
  const Nonce random = NewNonce();
  std::memcpy(&next_link_, random.data(), sizeof next_link_);
}

PairPort::~PairPort() {
  for (RailState& state : states_) {
    for (Slots* slots : {&state.receives, &state.sends}) {
      if (slots->keys != nullptr) rails_->memory().Release(slots->keys);
    }
  }
  for (int rail = 0; rail < rails_->size(); ++rail) (*rails_)[rail].receives.reset();
}

absl::StatusOr<PairPort::Slots> PairPort::MakeSlots(uint32_t count) {
  Slots out;
  const size_t bytes = count * slot_bytes_;
  out.memory = std::make_unique_for_overwrite<std::byte[]>(bytes + 64);
  const auto at = reinterpret_cast<uintptr_t>(out.memory.get());
  out.first = out.memory.get() + (64 - at % 64) % 64;
  WEFT_ASSIGN_OR_RETURN(out.keys, rails_->memory().Acquire(out.first, bytes, false));
  return out;
}

absl::StatusOr<std::unique_ptr<PairPort>> PairPort::Open(std::shared_ptr<Rails> rails,
                                                         const PairOptions& options) {
  std::unique_ptr<PairPort> out(new PairPort(std::move(rails), options));
  Rails& all = out->rails();
  const uint32_t receives = ReceivesOf(options);
  out->receives_ = receives;
  WEFT_RETURN_IF_ERROR(all.ShareReceives(out.get(), receives));
  out->states_.resize(static_cast<size_t>(all.size()));
  for (int rail = 0; rail < all.size(); ++rail) {
    RailState& state = out->states_[static_cast<size_t>(rail)];
    WEFT_ASSIGN_OR_RETURN(state.receives, out->MakeSlots(receives));
    WEFT_ASSIGN_OR_RETURN(state.sends, out->MakeSlots(kSendSlots));
    for (uint32_t slot = kSendSlots; slot-- > 0;) state.free.push_back(slot);
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

std::unique_ptr<LinkPaths> PairPort::OpenLink(DatagramOwner& owner) {
  while (links_.count(next_link_) > 0) ++next_link_;
  auto out = std::make_unique<PairPaths>(*this, owner, next_link_);
  links_[next_link_++] = out.get();
  return out;
}

bool PairPort::Poll(absl::Time now) {
  now_ = now;
  const bool moved = rails_->Poll();
  for (int rail = 0; rail < rails_->size(); ++rail) PostReceives(rail);
  for (size_t i = 0; i < degraded_.size(); ++i) degraded_[i]->LookForSilence();
  if (!std::exchange(freed_, false)) return moved;
  for (PairPaths* paths : std::exchange(blocked_, {})) {
    paths->is_blocked_ = false;
    paths->owner_.OnWritable();
  }
  return moved;
}

void PairPort::PostReceives(int rail) {
  RailState& state = states_[static_cast<size_t>(rail)];
  const uint32_t key = state.receives.keys->keys[static_cast<size_t>(rail)].local_key;
  while (!state.unposted.empty()) {
    std::array<NicReceive, kRepostAt> batch;
    const size_t count = std::min(batch.size(), state.unposted.size());
    for (size_t i = 0; i < count; ++i) {
      const uint32_t slot = state.unposted[state.unposted.size() - 1 - i];
      batch[i] = {Rails::SharedReceiveId(rail, slot), state.receives.first + slot * slot_bytes_,
                  static_cast<uint32_t>(slot_bytes_), key};
    }
    absl::Status posted = (*rails_)[rail].receives->Post(absl::MakeConstSpan(batch.data(), count));
    if (!posted.ok()) {  // at the next poll again
      WEFT_LOG_DEBUG("multipath: {}", std::string(posted.message()));
      return;
    }
    state.unposted.resize(state.unposted.size() - count);
  }
}

void PairPort::OnReceived(int rail, uint32_t slot, const NicCompletion& what) {
  RailState& state = states_[static_cast<size_t>(rail)];
  if (slot >= receives_) return;
  if (what.status == NicStatus::kOk && what.bytes <= slot_bytes_) {
    Take(absl::MakeConstSpan(state.receives.first + slot * slot_bytes_, what.bytes));
  } else {
    ++statistics_.receive_errors;  // of a message that was cut off, or a queue pair that failed
  }
  state.unposted.push_back(slot);
  if (state.unposted.size() >= kRepostAt) PostReceives(rail);
}

void PairPort::Take(absl::Span<const std::byte> packet) {
  ++statistics_.received;
  uint32_t link = 0;
  auto found = LinkOf(packet, &link) ? links_.find(link) : links_.end();
  if (found == links_.end() || !IsSealed(packet, found->second->owner_.key())) {
    ++statistics_.strangers;
    return;
  }
  found->second->heard_at_ = now_;
  Received whole = ReceivedOf(packet, /*marked=*/false, now_, now_);
  whole.header.remove_prefix(kEnvelopeBytes);
  found->second->owner_.OnDatagram(whole);
}

// ---- One link

PairPaths::PairPaths(PairPort& port, DatagramOwner& owner, uint32_t link)
    : port_(port), owner_(owner), link_(link) {}

PairPaths::~PairPaths() {
  for (size_t i = 0; i < paths_.size(); ++i) Lose(i, "");
  std::erase(port_.blocked_, this);
  std::erase(port_.degraded_, this);
  port_.links_.erase(link_);
}

absl::Status PairPaths::MakePairs() {
  Rails& rails = port_.rails();
  paths_.resize(static_cast<size_t>(port_.options().paths));
  Random random(port_.options().seed, link_);
  for (size_t i = 0; i < paths_.size(); ++i) {
    const int rail = static_cast<int>(i % static_cast<size_t>(rails.size()));
    Path& path = paths_[i];
    WEFT_ASSIGN_OR_RETURN(path.pair, rails.MakeQueuePair(rail, this, static_cast<int>(i)));
    path.psn = static_cast<uint32_t>(random()) & kPsnMask;
    path.source_port = static_cast<uint16_t>(topology::kRocePortFirst | (random() & 0x3FFF));
  }
  return absl::OkStatus();
}

absl::Status PairPaths::Describe(Address& own) {
  if (paths_.empty()) {
    absl::Status made = MakePairs();
    if (!made.ok()) {
      paths_.clear();
      return made;
    }
  }
  own.link = link_;
  own.buffer_bytes = uint64_t{port_.receives_} * port_.slot_bytes_;
  own.host = port_.rails()[0].device->name();
  for (const Path& path : paths_) {
    const Rail& rail = port_.rails()[path.pair->rail()];
    PairAddress pair;
    pair.queue_pair = path.pair->pair().number();
    pair.psn = path.psn;
    pair.lid = rail.port.lid;
    pair.ethernet = rail.port.ethernet ? 1 : 0;
    pair.mtu = static_cast<uint32_t>(rail.port.mtu);
    pair.gid = rail.gid.gid.gid;
    own.ports.push_back(path.source_port);
    own.queue_pairs.append(reinterpret_cast<const char*>(&pair), sizeof pair);
  }
  return absl::OkStatus();
}

absl::Status PairPaths::ConnectPair(Path& path, const std::string& remote, size_t index) {
  PairAddress peer;
  std::memcpy(&peer, remote.data() + index * sizeof peer, sizeof peer);
  const bool is_sound = peer.queue_pair <= kPsnMask && peer.psn <= kPsnMask && peer.mtu >= 256;
  if (!is_sound) {
    return absl::InvalidArgumentError(absl::StrCat("queue pair ", peer.queue_pair, ", psn ",
                                                   peer.psn, ", MTU ", peer.mtu, " of a peer"));
  }
  NicPath to = port_.rails().PathFrom(path.pair->rail());
  if (to.ethernet != (peer.ethernet != 0)) {
    return absl::UnavailableError("one side's port is Ethernet, the other's InfiniBand");
  }
  to.mtu = std::min(to.mtu, static_cast<int>(peer.mtu));
  to.remote_queue_pair = peer.queue_pair;
  to.remote_psn = peer.psn;
  to.local_psn = path.psn;
  to.remote_gid = peer.gid;
  to.remote_lid = peer.lid;
  to.flow_label = topology::RoceFlowLabel(path.source_port);
  WEFT_RETURN_IF_ERROR(path.pair->pair().ToReadyToReceive(to));
  return path.pair->pair().ToReadyToSend(to);
}

absl::StatusOr<LinkPaths::Facts> PairPaths::Connect(const Address& peer) {
  if (paths_.empty()) return absl::FailedPreconditionError("a peer that speaks first");
  if (peer.queue_pairs.size() != peer.ports.size() * sizeof(PairAddress)) {
    return absl::InvalidArgumentError("an address without queue pairs");
  }
  peer_text_ = peer.host;
  const size_t paths = std::min(peer.ports.size(), paths_.size());
  for (size_t i = 0; i < paths; ++i) {
    if (paths_[i].pair == nullptr) continue;
    absl::Status connected = ConnectPair(paths_[i], peer.queue_pairs, i);
    if (absl::IsInvalidArgument(connected)) return connected;
    if (!connected.ok()) Lose(i, std::string(connected.message()));
  }
  usable_ = paths;
  heard_at_ = port_.now_;
  if (!status_.ok()) return status_;
  // Half of what the peer's device holds for all its links; answers take receives as well.
  const auto room = static_cast<int64_t>(std::min<uint64_t>(peer.buffer_bytes, 1 << 30) / 2);
  return Facts{static_cast<int>(paths), Bytes(room)};
}

bool PairPaths::CanSend() {
  const bool is_full = std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) {
    if (path.pair == nullptr) return false;
    if (port_.states_[static_cast<size_t>(path.pair->rail())].free.empty()) return true;
    return path.IsFull() && port_.now_ - path.moved_at < kStuck;
  });
  if (is_full && !std::exchange(is_blocked_, true)) port_.blocked_.push_back(this);
  return !is_full;
}

void PairPaths::Queue(PathId id, absl::Span<const std::byte> header,
                      absl::Span<const std::byte> chunk) {
  Path& path = paths_[id];
  if (path.pair == nullptr || path.IsFull()) {  // lost, like everything on a dead path
    ++port_.statistics_.dropped;
    return;
  }
  PairPort::RailState& state = port_.states_[static_cast<size_t>(path.pair->rail())];
  WEFT_CHECK(!state.free.empty() && header.size() + chunk.size() <= port_.slot_bytes_,
             "free=" << state.free.size() << " header=" << header.size());
  const uint32_t slot = state.free.back();
  state.free.pop_back();
  std::byte* to = state.sends.first + slot * port_.slot_bytes_;
  std::memcpy(to, header.data(), header.size());
  if (!chunk.empty()) std::memcpy(to + header.size(), chunk.data(), chunk.size());
  if (path.batch.empty()) dirty_.push_back(id);
  path.batch.push_back(slot);
  path.lengths.push_back(static_cast<uint32_t>(header.size() + chunk.size()));
}

void PairPaths::Flush() {
  for (PathId path : std::exchange(dirty_, {})) Post(path);
}

void PairPaths::Post(size_t index) {
  Path& path = paths_[index];
  if (path.pair == nullptr) return;
  if (path.in_flight.empty()) path.moved_at = port_.now_;
  const auto rail = static_cast<size_t>(path.pair->rail());
  const PairPort::Slots& slots = port_.states_[rail].sends;
  std::vector<NicSend> sends(path.batch.size());
  for (size_t i = 0; i < sends.size(); ++i) {
    NicSend& send = sends[i];
    send.id = path.pair->SendId(path.next);
    send.local = slots.first + path.batch[i] * port_.slot_bytes_;
    send.length = path.lengths[i];
    send.local_key = slots.keys->keys[rail].local_key;
    send.signaled = i + 1 == sends.size() || path.next % kSignalEvery == 0;
    path.next = (path.next + 1) & kNumberMask;
    path.in_flight.push_back(path.batch[i]);
  }
  path.batch.clear();
  path.lengths.clear();
  port_.statistics_.sent += static_cast<int64_t>(sends.size());
  absl::Status posted = path.pair->pair().PostSends(sends);
  if (!posted.ok()) Lose(index, std::string(posted.message()));
}

// Once its queue pair is destroyed, the device reads nothing of it any more.
void PairPaths::Lose(size_t index, const std::string& why) {
  Path& path = paths_[index];
  if (path.pair == nullptr) return;
  PairPort::RailState& state = port_.states_[static_cast<size_t>(path.pair->rail())];
  path.pair.reset();
  state.free.insert(state.free.end(), path.in_flight.begin(), path.in_flight.end());
  state.free.insert(state.free.end(), path.batch.begin(), path.batch.end());
  path.in_flight.clear();
  path.batch.clear();
  path.lengths.clear();
  port_.freed_ = true;
  if (why.empty()) return;  // on purpose
  ++port_.statistics_.pairs_lost;
  WEFT_LOG_WARN("multipath: queue pair {} of {} to {} is lost: {}", index, paths_.size(),
                peer_text_, why);
  const auto end =
      usable_ > 0 ? paths_.begin() + static_cast<std::ptrdiff_t>(usable_) : paths_.end();
  const bool any =
      std::any_of(paths_.begin(), end, [](const Path& one) { return one.pair != nullptr; });
  const bool is_first =
      std::find(port_.degraded_.begin(), port_.degraded_.end(), this) == port_.degraded_.end();
  if (is_first) port_.degraded_.push_back(this);
  if (!any) {
    std::erase(port_.degraded_, this);
    status_ = absl::UnavailableError(
        absl::StrCat("all ", paths_.size(), " queue pairs are lost, the last by: ", why));
  }
  owner_.OnWritable();
}

void PairPaths::OnCompletion(int lane, bool, uint32_t number, const NicCompletion& what) {
  const auto index = static_cast<size_t>(lane);
  Path& path = paths_[index];
  if (what.status != NicStatus::kOk) {
    return Lose(index, StatusText(what.status));
  }
  // What completes stands for all before it.
  const uint32_t first = (path.next - static_cast<uint32_t>(path.in_flight.size())) & kNumberMask;
  const uint32_t done = ((number - first) & kNumberMask) + 1;
  if (done > path.in_flight.size()) return;  // said twice
  path.moved_at = port_.now_;
  PairPort::RailState& state = port_.states_[static_cast<size_t>(path.pair->rail())];
  for (uint32_t i = 0; i < done; ++i) {
    state.free.push_back(path.in_flight.front());
    path.in_flight.pop_front();
  }
  port_.freed_ = true;
}

void PairPaths::LookForSilence() {
  const absl::Duration patience = port_.rails().options().give_up_after;
  if (!status_.ok() || port_.now_ - heard_at_ < patience) return;
  const auto lost = std::count_if(paths_.begin(), paths_.end(),
                                  [](const Path& path) { return path.pair == nullptr; });
  status_ = absl::UnavailableError(
      absl::StrCat(lost, " of ", paths_.size(),
                   " queue pairs are lost, and nothing has come over the others for ",
                   absl::FormatDuration(patience), " (verbs.give_up_after)"));
  owner_.OnWritable();
}

PathId PairPaths::Carrier(PathId id) const {
  const size_t first = id % usable_;
  for (size_t i = 0; i < usable_; ++i) {
    const size_t path = (first + i) % usable_;
    if (paths_[path].pair != nullptr) return static_cast<PathId>(path);
  }
  return static_cast<PathId>(first);
}

void PairPaths::OnQueuePairLost(int lane, const std::string& why) {
  Lose(static_cast<size_t>(lane), why);
}

std::string PairPaths::Suspicion() const {
  return absl::StrCat("does the fabric carry RoCE between ", port_.rails()[0].Describe(), " and ",
                      peer_text_, "?");
}

}  // namespace weft::net::multipath
