#include "net/verbs/pair_paths.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/explain.h"
#include "topology/ecmp/roce.h"

namespace weft::net::multipath {
namespace {

constexpr uint32_t kSignalEvery = 32;  // and the last of each batch
constexpr uint32_t kNumberMask = RailQueuePair::kNumberMask;
constexpr uint32_t kPsnMask = (1u << 24) - 1;
// Before a queue pair is replaced, doubling; anew for one that has lived for the longest.
constexpr absl::Duration kPauseMin = absl::Milliseconds(10), kPauseMax = absl::Seconds(2);

}  // namespace

PairPaths::PairPaths(PairPort& port, DatagramOwner& owner, uint32_t link, const LinkEnds& ends)
    : port_(port),
      owner_(owner),
      link_(link),
      random_(port.options().seed, link),
      ways_(port.options().ways, ends.peer, ends.leads) {}

PairPaths::~PairPaths() {
  for (Path& path : paths_) Drop(path);
  std::erase(port_.blocked_, this);
  port_.links_.erase(link_);
}

// ---- Queue pairs

absl::Status PairPaths::Make(size_t index) {
  Rails& rails = port_.rails();
  Path& path = paths_[index];
  const int rail = static_cast<int>(index % static_cast<size_t>(rails.size()));
  WEFT_ASSIGN_OR_RETURN(path.pair, rails.MakeQueuePair(rail, this, static_cast<int>(index)));
  path.state = State::kMade;
  path.psn = static_cast<uint32_t>(random_()) & kPsnMask;
  path.source_port = static_cast<uint16_t>(topology::kRocePortFirst | (random_() & 0x3FFF));
  path.next = 0;
  path.made_at = port_.now_;
  return absl::OkStatus();
}

PairPaths::PairAddress PairPaths::AddressOf(const Path& path) {
  const Rail& rail = port_.rails()[path.pair->rail()];
  PairAddress out;
  out.queue_pair = path.pair->pair().number();
  out.psn = path.psn;
  out.lid = rail.port.lid;
  out.ethernet = rail.port.ethernet ? 1 : 0;
  out.mtu = static_cast<uint32_t>(rail.port.mtu);
  out.gid = rail.gid.gid.gid;
  return out;
}

absl::Status PairPaths::Describe(Address& own) {
  if (paths_.empty()) {
    paths_.resize(static_cast<size_t>(port_.options().paths));
    for (size_t i = 0; i < paths_.size(); ++i) {
      absl::Status made = Make(i);
      if (made.ok()) continue;
      paths_.clear();
      return made;
    }
  }
  own.link = link_;
  own.buffer_bytes = uint64_t{port_.receives_} * port_.slot_bytes_;
  own.host = port_.rails()[0].device->name();
  for (const Path& path : paths_) {
    // One that has failed already is named by nothing, and its successor by a word.
    const PairAddress pair = path.pair != nullptr ? AddressOf(path) : PairAddress{};
    own.ports.push_back(path.source_port);
    own.queue_pairs.append(reinterpret_cast<const char*>(&pair), sizeof pair);
  }
  return absl::OkStatus();
}

// kInvalidArgument: that is no address. The queue pair is lost if it cannot be connected.
absl::Status PairPaths::ConnectTo(const PairAddress& peer, size_t index) {
  const bool is_sound = peer.queue_pair <= kPsnMask && peer.psn <= kPsnMask && peer.mtu >= 256;
  if (!is_sound) {
    return absl::InvalidArgumentError(absl::StrCat("queue pair ", peer.queue_pair, ", psn ",
                                                   peer.psn, ", MTU ", peer.mtu, " of a peer"));
  }
  Path& path = paths_[index];
  if (ways_ && peer.ethernet != 0) {
    const Gid& own = port_.rails()[path.pair->rail()].gid.gid.gid;
    WEFT_ASSIGN_OR_RETURN(const uint16_t planned, ways_.Port(index, static_cast<int>(paths_.size()),
                                                             path.generation > 0, own, peer.gid));
    if (planned != 0) path.source_port = planned;
  }
  NicPath to = port_.rails().PathFrom(path.pair->rail(), path.source_port);
  if (to.ethernet != (peer.ethernet != 0)) {
    Lose(index, "one side's port is Ethernet, the other's InfiniBand");
    return absl::OkStatus();
  }
  to.mtu = std::min(to.mtu, static_cast<int>(peer.mtu));
  to.remote_queue_pair = peer.queue_pair;
  to.remote_psn = peer.psn;
  to.local_psn = path.psn;
  to.remote_gid = peer.gid;
  to.remote_lid = peer.lid;
  path.state = State::kConnecting;
  path.pair->Connect(to);
  return absl::OkStatus();
}

void PairPaths::OnConnected(int lane, const absl::Status& status) {
  const auto index = static_cast<size_t>(lane);
  Path& path = paths_[index];
  if (path.state != State::kConnecting) return;
  if (!status.ok()) return Lose(index, std::string(status.message()));
  path.state = State::kConnected;
  path.says_ready = true;
  if (path.peer_is_ready) BecomeReady(index);
  owner_.OnWritable();
}

absl::StatusOr<LinkPaths::Facts> PairPaths::Connect(const Address& peer) {
  if (paths_.empty()) return absl::FailedPreconditionError("a peer that speaks first");
  if (peer.queue_pairs.size() != peer.ports.size() * sizeof(PairAddress)) {
    return absl::InvalidArgumentError("an address without queue pairs");
  }
  peer_text_ = peer.host;
  heard_at_ = port_.now_;
  usable_ = std::min(peer.ports.size(), paths_.size());
  joined_most_ = std::min(port_.slot_bytes_, SlotBytesOf(peer.chunk_max, port_.options().room));
  for (size_t i = 0; i < usable_; ++i) {
    PairAddress address;
    std::memcpy(&address, peer.queue_pairs.data() + i * sizeof address, sizeof address);
    if (paths_[i].state != State::kMade || address.queue_pair == 0) continue;
    WEFT_RETURN_IF_ERROR(ConnectTo(address, i));
  }
  if (!status_.ok()) return status_;
  // Half of what the peer's device holds for all its links; answers take receives as well.
  const auto room = static_cast<int64_t>(std::min<uint64_t>(peer.buffer_bytes, 1 << 30) / 2);
  return Facts{static_cast<int>(usable_), Bytes(room)};
}

bool PairPaths::IsOpen() const {
  return std::any_of(paths_.begin(), paths_.end(),
                     [](const Path& path) { return path.state == State::kReady; });
}

// Once its queue pair is destroyed, the device reads nothing of it any more.
void PairPaths::Drop(Path& path) {
  path.state = State::kLost;
  path.says_address = path.says_ready = path.asks = path.peer_is_ready = false;
  path.left_at = absl::InfiniteFuture();
  if (path.pair == nullptr) return;
  PairPort::RailState& state = port_.states_[static_cast<size_t>(path.pair->rail())];
  path.pair.reset();
  state.free.insert(state.free.end(), path.in_flight.begin(), path.in_flight.end());
  state.free.insert(state.free.end(), path.batch.begin(), path.batch.end());
  path.in_flight.clear();
  path.batch.clear();
  path.lengths.clear();
  port_.freed_ = true;
}

void PairPaths::Lose(size_t index, const std::string& why) {
  Path& path = paths_[index];
  if (path.pair != nullptr) {
    ++port_.statistics_.pairs_lost;
    WEFT_LOG_WARN("multipath: queue pair ", index, " of ", paths_.size(), " to ", peer_text_,
                  " is lost: ", why);
  } else {
    WEFT_LOG_DEBUG("multipath: queue pair ", index, " of ", paths_.size(), " to ", peer_text_,
                   " cannot be replaced: ", why);
  }
  Drop(path);
  const bool has_lived = port_.now_ - path.made_at > kPauseMax;
  path.pause = has_lived ? absl::ZeroDuration() : std::clamp(path.pause * 2, kPauseMin, kPauseMax);
  path.renew_at = port_.now_ + path.pause;
  const bool is_over = std::all_of(paths_.begin(), paths_.end(), [&](const Path& one) {
    const auto number = static_cast<size_t>(&one - paths_.data());
    const auto rails = static_cast<size_t>(port_.rails().size());
    return one.state == State::kLost && port_.rails()[static_cast<int>(number % rails)].lost;
  });
  if (is_over) {
    status_ = absl::UnavailableError(
        absl::StrCat("all ", paths_.size(), " queue pairs are lost, the last by: ", why));
  }
  owner_.OnWritable();
}

size_t PairPaths::HeldInVain(size_t index, int rail) const {
  const Path& path = paths_[index];
  const bool is_there = path.pair != nullptr && path.pair->rail() == rail;
  return is_there && IsStuck(path) ? path.in_flight.size() : 0;
}

void PairPaths::LoseStuck(size_t index) {
  Lose(index, absl::StrCat("nothing of ", paths_[index].in_flight.size(), " packets has left for ",
                           absl::FormatDuration(kPairStuck), ", and others wait for their memory"));
}

// ---- Packets

bool PairPaths::IsStuck(const Path& path) const {
  return !path.in_flight.empty() && port_.now_ - path.moved_at >= kPairStuck;
}

PathId PairPaths::Carrier(PathId id) const {
  const size_t first = id % usable_;
  for (size_t i = 0; i < usable_; ++i) {
    const size_t path = (first + i) % usable_;
    if (paths_[path].state == State::kReady) return static_cast<PathId>(path);
  }
  return static_cast<PathId>(first);
}

bool PairPaths::CanSend() {
  const bool is_full = std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) {
    if (path.state != State::kReady) return false;
    if (port_.states_[static_cast<size_t>(path.pair->rail())].free.empty()) return true;
    return path.IsFull() && !IsStuck(path);
  });
  if (is_full && !std::exchange(is_blocked_, true)) port_.blocked_.push_back(this);
  return !is_full;
}

void PairPaths::Queue(PathId id, absl::Span<const std::byte> header,
                      absl::Span<const std::byte> chunk) {
  Path& path = paths_[id];
  if (path.state != State::kReady || path.IsFull()) {  // lost, like everything on a dead path
    ++port_.statistics_.dropped;
    return;
  }
  ++port_.statistics_.sent;
  PairPort::RailState& state = port_.states_[static_cast<size_t>(path.pair->rail())];
  const size_t bytes = header.size() + chunk.size();
  size_t at = path.batch.empty() ? 0 : AlignedPacket(path.lengths.back());
  if (path.batch.empty() || !path.is_open || at + bytes > joined_most_) {
    WEFT_CHECK(!state.free.empty() && bytes <= port_.slot_bytes_,
               "free=" << state.free.size() << " bytes=" << bytes);
    if (path.batch.empty()) dirty_.push_back(id);
    path.batch.push_back(state.free.back());
    path.lengths.push_back(0);
    state.free.pop_back();
    at = 0;
  }
  std::byte* to = state.sends.memory.get() + path.batch.back() * port_.slot_bytes_ + at;
  std::memcpy(to, header.data(), header.size());
  if (!chunk.empty()) std::memcpy(to + header.size(), chunk.data(), chunk.size());
  path.lengths.back() = static_cast<uint32_t>(at + bytes);
  path.is_open = MayBeFollowed(header);
}

void PairPaths::Flush() {
  for (PathId path : std::exchange(dirty_, {})) Post(path);
}

void PairPaths::Post(size_t index) {
  Path& path = paths_[index];
  if (path.batch.empty()) return;
  if (path.in_flight.empty()) path.moved_at = port_.now_;
  const auto rail = static_cast<size_t>(path.pair->rail());
  const PairPort::Slots& slots = port_.states_[rail].sends;
  std::vector<NicSend> sends(path.batch.size());
  for (size_t i = 0; i < sends.size(); ++i) {
    NicSend& send = sends[i];
    send.id = path.pair->SendId(path.next);
    send.local = slots.memory.get() + path.batch[i] * port_.slot_bytes_;
    send.length = path.lengths[i];
    send.local_key = slots.keys->keys[rail].local_key;
    send.signaled = i + 1 == sends.size() || path.next % kSignalEvery == 0;
    path.next = (path.next + 1) & kNumberMask;
    path.in_flight.push_back(path.batch[i]);
  }
  path.batch.clear();
  path.lengths.clear();
  port_.statistics_.messages += static_cast<int64_t>(sends.size());
  absl::Status posted = path.pair->pair().PostSends(sends);
  if (!posted.ok()) Lose(index, std::string(posted.message()));
}

void PairPaths::OnCompletion(int lane, bool, uint32_t number, const NicCompletion& what) {
  const auto index = static_cast<size_t>(lane);
  Path& path = paths_[index];
  if (what.status != NicStatus::kOk) return Lose(index, StatusText(what.status));
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

void PairPaths::OnQueuePairLost(int lane, const std::string& why) {
  Lose(static_cast<size_t>(lane), why);
}

std::string PairPaths::Suspicion() const {
  return absl::StrCat("does the fabric carry RoCE between ", port_.rails()[0].Describe(), " and ",
                      peer_text_, "?");
}

}  // namespace weft::net::multipath
