#include "collectives/multicast.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/status.h"
#include "collectives/algorithms/algorithm.h"

namespace weft::collectives {
namespace {

using net::shm::MulticastRing;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + MulticastRing::kAlignment - 1) / MulticastRing::kAlignment *
         MulticastRing::kAlignment;
}

// What a rank writes: each stretch of its input that it sends to anyone, once.
std::vector<MulticastPlan::Piece> PiecesOf(const RankSchedule& schedule, size_t element) {
  std::vector<MulticastPlan::Piece> pieces;
  uint64_t end = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind != StepKind::kSend) continue;
    WEFT_CHECK(step.left.buffer == Buffer::kInput && step.after_count == 0,
               "a message of multicast that waits for another step");
    const bool is_there = std::any_of(pieces.begin(), pieces.end(), [&](const auto& piece) {
      return piece.offset == step.left.offset && piece.length == step.length;
    });
    if (is_there) continue;
    pieces.push_back({step.left.offset, step.length, end});
    end += RoundUp(step.length * element);
  }
  return pieces;
}

bool HasMessageWith(const RankSchedule& schedule, int peer) {
  return std::any_of(schedule.steps.begin(), schedule.steps.end(),
                     [peer](const Step& step) { return step.peer == peer; });
}

// Where the payload of a rank with this schedule has what it sends to `peer`.
uint64_t PlaceFor(const RankSchedule& schedule, const std::vector<MulticastPlan::Piece>& pieces,
                  int peer, uint64_t length) {
  for (const Step& step : schedule.steps) {
    if (step.kind != StepKind::kSend || step.peer != peer) continue;
    for (const MulticastPlan::Piece& piece : pieces) {
      if (piece.offset == step.left.offset && piece.length == length) return piece.at;
    }
  }
  WEFT_CHECK(false, "a message of multicast that nobody sends");
  return 0;
}

PostedCount Sum(const PostedCount& a, const PostedCount& b) {
  return {a.sends + b.sends, a.receives + b.receives};
}

}  // namespace

// ---- Rings

bool MulticastRings::Create() {
  auto writer = net::shm::MulticastWriter::Create(payload_);
  // As for other memory that peers map: half of the descriptors are left to links and files.
  const bool is_usable = writer.ok() && writer->memory()->fd() < OpenFilesLimit() / 2;
  if (is_usable) {
    writer_ = *std::move(writer);
  } else {
    WEFT_LOG_DEBUG("no ring for small collectives: ",
                   writer.ok() ? "links and files need the descriptors that are left"
                               : writer.status().message());
  }
  return is_usable;
}

bool MulticastRings::Add(int rank, const net::ShownMemory& shown) {
  auto& reader = readers_[static_cast<size_t>(rank)];
  reader = net::shm::MulticastReader::Open(shown.data, shown.bytes, payload_);
  return reader != nullptr;
}

void MulticastRings::Settle(bool open) {
  state_ = open ? State::kOpen : State::kRefused;
  if (open) return;
  writer_ = net::shm::MulticastWriter();
  for (auto& reader : readers_) reader.reset();
}

bool MulticastRings::CanWrite(uint64_t call) {
  if (call < writable_) return true;
  uint64_t finished = finished_;
  for (const auto& reader : readers_) {
    if (reader != nullptr) finished = std::min(finished, reader->finished());
  }
  writable_ = finished + kEntries;
  return call < writable_;
}

bool MulticastRings::Lags(int rank, uint64_t call) const {
  const auto& reader = readers_[static_cast<size_t>(rank)];
  return reader != nullptr && reader->finished() + kEntries <= call;
}

bool MulticastRings::Finish(uint64_t call) {
  WEFT_CHECK(call >= finished_ && call - finished_ < kEntries, "call " << call << " of a ring");
  finished_above_ |= uint64_t{1} << (call - finished_);
  finished_before_ = finished_;
  while ((finished_above_ & 1) != 0) finished_above_ >>= 1, ++finished_;
  if (finished_ == finished_before_) return false;
  writer_.Finish(finished_);
  // Between this and a look at who waits: whoever is about to sleep looks at it after a fence, too.
  net::shm::FullFence();
  for (int rank = 0; rank < size(); ++rank) {
    if (MayWaitForSpace(rank)) return true;
  }
  return false;
}

bool MulticastRings::MayWaitForSpace(int rank) const {
  const auto& reader = readers_[static_cast<size_t>(rank)];
  return reader != nullptr && reader->Has(finished_before_ + kEntries - 1);
}

// ---- Plan

MulticastPlan::MulticastPlan(const CollectiveSpec& spec, size_t element) {
  std::vector<RankSchedule> schedules;
  for (int rank = 0; rank < spec.size; ++rank) {
    CollectiveSpec one = spec;
    one.rank = rank;
    one.in_place = false;  // the input is read before anything is written
    schedules.push_back(kMulticast.build(one));
  }
  schedule = schedules[static_cast<size_t>(spec.rank)];
  pieces = PiecesOf(schedule, element);
  for (uint32_t id = 0; id < schedule.steps.size(); ++id) {
    const Step& step = schedule.steps[id];
    if (step.kind == StepKind::kSend) continue;
    if (step.kind != StepKind::kReceive) {
      local.push_back(id);
      continue;
    }
    const RankSchedule& theirs = schedules[static_cast<size_t>(step.peer)];
    parts.push_back({.peer = step.peer,
                     .at = PlaceFor(theirs, PiecesOf(theirs, element), spec.rank, step.length),
                     .length = step.length,
                     .out = step.out});
  }
  for (int rank = 0; rank < spec.size; ++rank) {
    if (HasMessageWith(schedule, rank)) partners.push_back(rank);
    for (const RankSchedule& theirs : schedules) has_messages |= HasMessageWith(theirs, rank);
  }
}

// ---- Opening

// The exchange of the group's first call.
class RingOpening {
 public:
  explicit RingOpening(const Invocation& call)
      : call_(call), exchange_(PlanOf(*call.rings)), is_shown_(call.group.size(), false) {
    mine_.resize(call.group.size());
    theirs_.resize(call.group.size());
    posted_before_.resize(call.group.size());
    is_shown_[own()] = true;
    if (!rings().Create()) is_shown_.assign(is_shown_.size(), true);  // by kNotShown
  }

  // True if anything moved. Ends by rings().Settle().
  bool Advance(Peers& peers) {
    bool moved = false;
    if (stage_ == Stage::kShow) {
      moved = Show(peers);
      if (std::count(is_shown_.begin(), is_shown_.end(), false) > 0) return moved;
      stage_ = Stage::kTell;
      Exchange(peers);
    }
    moved |= exchange_.Advance(peers);
    if (!exchange_.done()) return moved;
    exchange_.Rest();
    if (stage_ == Stage::kTell) {
      stage_ = Stage::kAgree;
      all_mapped_ = Map();
      std::fill(mine_.begin(), mine_.end(), all_mapped_ ? 1 : 0);
      Exchange(peers);
      exchange_.Advance(peers);
    } else {
      theirs_[own()] = all_mapped_ ? 1 : 0;
      rings().Settle(std::count(theirs_.begin(), theirs_.end(), uint64_t{1}) ==
                     static_cast<ptrdiff_t>(theirs_.size()));
    }
    return true;
  }

  const absl::Status& status() const { return exchange_.status(); }
  int failed_peer() const { return exchange_.failed_peer(); }
  // A ring that a link has not shown yet waits for that link's handshake.
  bool AwaitsLink() const { return stage_ == Stage::kShow || exchange_.AwaitsLink(); }
  bool AtRest() { return stage_ == Stage::kShow || exchange_.AtRest(); }
  bool Holds(int peer) { return stage_ != Stage::kShow && exchange_.Holds(peer); }
  PostedCount Posted(int peer) const {  // in both exchanges, which have one tag
    if (stage_ == Stage::kShow) return PostedCount();
    return Sum(posted_before_[static_cast<size_t>(peer)], exchange_.Posted(peer));
  }
  bool Needs(int peer) const {
    if (static_cast<size_t>(peer) == own()) return false;
    return stage_ == Stage::kShow || exchange_.Needs(peer);
  }
  void Rest() {
    if (stage_ != Stage::kShow) exchange_.Rest();
  }

 private:
  enum class Stage : uint8_t { kShow, kTell, kAgree };
  static std::shared_ptr<const Plan> PlanOf(const MulticastRings& rings) {
    CollectiveSpec spec;
    spec.kind = CollectiveKind::kAllToAll;
    spec.size = rings.size();
    spec.rank = rings.rank();
    spec.count = 1;
    return std::make_shared<Plan>(kDirect.build(spec));
  }
  MulticastRings& rings() const { return *call_.rings; }
  size_t own() const { return static_cast<size_t>(call_.rings->rank()); }

  bool Show(Peers& peers) {
    bool moved = false;
    for (size_t r = 0; r < is_shown_.size(); ++r) {
      if (is_shown_[r]) continue;
      net::SendLink* link = peers.SendTo(*call_.group[r]);
      if (link == nullptr) continue;
      const auto number = link->Show(rings().memory()->data(), rings().memory()->bytes());
      if (!number.has_value()) continue;
      mine_[r] = *number;
      is_shown_[r] = true;
      moved = true;
    }
    return moved;
  }

  bool Map() {
    bool all = rings().memory() != nullptr;
    for (size_t r = 0; r < theirs_.size() && all; ++r) {
      if (r == own()) continue;
      const auto& link = call_.group[r]->receive;
      all = link != nullptr &&
            rings().Add(static_cast<int>(r), link->Shown(static_cast<uint32_t>(theirs_[r])));
    }
    return all;
  }

  void Exchange(Peers& peers) {
    for (size_t r = 0; r < posted_before_.size(); ++r) {
      posted_before_[r] = Sum(posted_before_[r], exchange_.Posted(static_cast<int>(r)));
    }
    Invocation exchange;
    exchange.input = mine_.data();
    exchange.output = theirs_.data();
    exchange.input_length = exchange.output_length = mine_.size();
    exchange.element = sizeof(uint64_t);
    exchange.key = call_.key;
    exchange.group = call_.group;
    exchange_.Begin(exchange, peers);
  }

  const Invocation call_;
  Execution exchange_;
  Stage stage_ = Stage::kShow;
  std::vector<bool> is_shown_;              // by group rank
  std::vector<PostedCount> posted_before_;  // by group rank: in exchanges before the present one
  std::vector<uint64_t> mine_, theirs_;     // numbers of rings; then whether all were mapped
  bool all_mapped_ = false;
};

// ---- Run

MulticastRun::MulticastRun(std::shared_ptr<const MulticastPlan> plan,
                           std::shared_ptr<const Plan> over_links)
    : plan_(std::move(plan)), over_links_(std::move(over_links)) {}

MulticastRun::~MulticastRun() = default;

void MulticastRun::Begin(const Invocation& invocation, Peers& /*peers*/) {
  call_ = invocation;
  written_ = done_ = false;
  payloads_.assign(call_.group.size(), nullptr);
  missing_ = plan_->partners.size();
  status_ = absl::OkStatus();
  failed_peer_ = -1;
}

void MulticastRun::Rest() {
  if (opening_ != nullptr) opening_->Rest();
  opening_.reset();
  if (links_ != nullptr) links_->Rest();
  links_.reset();
}

bool MulticastRun::AdvanceOpening(Peers& peers) {
  if (call_.ring_call != 0) return false;  // the first call's run does
  if (opening_ == nullptr) opening_ = std::make_unique<RingOpening>(call_);
  return opening_->Advance(peers);
}

bool MulticastRun::Advance(Peers& peers, uint32_t window) {
  if (done() || !status().ok()) return false;
  if (links_ != nullptr) return links_->Advance(peers, window);
  bool moved = false;
  if (rings().state() == MulticastRings::State::kNone) moved = AdvanceOpening(peers);
  if (rings().state() == MulticastRings::State::kNone) return moved;
  if (rings().state() == MulticastRings::State::kRefused) {
    links_ = std::make_unique<Execution>(over_links_);
    links_->Begin(call_, peers);
    links_->Advance(peers, window);
    return true;
  }
  if (!written_ && rings().CanWrite(call_.ring_call)) {
    Write(peers);
    moved = true;
  }
  moved |= Collect();
  if (written_ && missing_ == 0 && status_.ok()) {
    Complete(peers);
    moved = true;
  }
  return moved;
}

void MulticastRun::Write(Peers& peers) {
  std::byte* const payload = rings().Payload(call_.ring_call);
  for (const MulticastPlan::Piece& piece : plan_->pieces) {
    if (piece.length == 0) continue;
    std::memcpy(payload + piece.at, At({Buffer::kInput, piece.offset}),
                piece.length * call_.element);
  }
  // Calls of a group that differ may have the same number among those that use rings.
  rings().Publish(call_.ring_call, call_.key.check ^ call_.key.tag);
  written_ = true;
  for (const int peer : plan_->partners) Wake(peer, peers);
}

bool MulticastRun::Collect() {
  bool moved = false;
  for (const int peer : plan_->partners) {
    const std::byte*& payload = payloads_[static_cast<size_t>(peer)];
    if (payload != nullptr) continue;
    uint64_t check = 0;
    payload = rings().Read(peer, call_.ring_call, &check);
    if (payload == nullptr) continue;
    moved = true;
    --missing_;
    const uint64_t own = call_.key.check ^ call_.key.tag;
    if (check == own) continue;
    status_ = absl::FailedPreconditionError(
        absl::StrCat("message check differs: this rank's is ", own, ", the sender's ", check));
    failed_peer_ = peer;
    return true;
  }
  return moved;
}

void MulticastRun::Complete(Peers& peers) {
  for (const MulticastPlan::Part& part : plan_->parts) {
    if (part.out.buffer == Buffer::kScratch || part.length == 0) continue;
    std::memcpy(At(part.out), payloads_[static_cast<size_t>(part.peer)] + part.at,
                part.length * call_.element);
  }
  for (const uint32_t id : plan_->local) {
    RunLocalStep(
        plan_->schedule, plan_->schedule.steps[id], call_, call_.reduce,
        [this](Place place) { return At(place); }, operands_);
  }
  done_ = true;
  if (!rings().Finish(call_.ring_call)) return;
  for (int peer = 0; peer < rings().size(); ++peer) {
    if (rings().MayWaitForSpace(peer)) Wake(peer, peers);
  }
}

// A group that was shrunk may have closed the link: it is made anew, also to hear of a death.
void MulticastRun::Wake(int peer, Peers& peers) const {
  net::SendLink* link = peers.SendTo(*call_.group[static_cast<size_t>(peer)]);
  if (link != nullptr) link->WakePeer();
}

// Scratch is what was received, where it lies.
std::byte* MulticastRun::At(Place place) const {
  if (place.buffer != Buffer::kScratch) return call_.At(place);
  for (const MulticastPlan::Part& part : plan_->parts) {
    if (!(part.out == place)) continue;
    return const_cast<std::byte*>(payloads_[static_cast<size_t>(part.peer)]) + part.at;
  }
  WEFT_CHECK(false, "scratch of multicast at " << place.offset << " that nothing was received in");
  return nullptr;
}

Outlook MulticastRun::outlook() const {
  if (links_ != nullptr || done_ || !status_.ok()) return Outlook::kLinks;
  if (rings().state() == MulticastRings::State::kNone) return Outlook::kLinks;
  if (rings().state() == MulticastRings::State::kRefused) return Outlook::kReady;
  if (!written_ && rings().CanWrite(call_.ring_call)) return Outlook::kReady;
  for (const int peer : plan_->partners) {
    if (payloads_[static_cast<size_t>(peer)] != nullptr) continue;
    if (rings().Has(peer, call_.ring_call)) return Outlook::kReady;
  }
  return Outlook::kNothing;
}

bool MulticastRun::AwaitsLink() const {
  if (links_ != nullptr) return links_->AwaitsLink();
  return opening_ != nullptr && rings().state() == MulticastRings::State::kNone &&
         opening_->AwaitsLink();
}

bool MulticastRun::WaitsOnCpuOfPeer(int cpu) {
  if (links_ != nullptr || done_ || cpu < 0) return false;
  if (rings().state() != MulticastRings::State::kOpen) return false;
  rings().TellWait(call_.ring_call, cpu);
  return std::any_of(plan_->partners.begin(), plan_->partners.end(), [&](int peer) {
    return payloads_[static_cast<size_t>(peer)] == nullptr &&
           rings().HasWaitedOn(peer, call_.ring_call, cpu);
  });
}

const absl::Status& MulticastRun::status() const {
  if (links_ != nullptr) return links_->status();
  return opening_ != nullptr && !opening_->status().ok() ? opening_->status() : status_;
}

int MulticastRun::failed_peer() const {
  if (links_ != nullptr) return links_->failed_peer();
  return opening_ != nullptr && !opening_->status().ok() ? opening_->failed_peer() : failed_peer_;
}

bool MulticastRun::AtRest() {
  if (links_ != nullptr) return links_->AtRest();
  return opening_ == nullptr || opening_->AtRest();
}

bool MulticastRun::Holds(int peer) {
  if (links_ != nullptr) return links_->Holds(peer);
  return opening_ != nullptr && opening_->Holds(peer);
}

PostedCount MulticastRun::Posted(int peer) const {
  // The opening that the rings were refused in, and the links then, have one tag.
  return Sum(opening_ == nullptr ? PostedCount() : opening_->Posted(peer),
             links_ == nullptr ? PostedCount() : links_->Posted(peer));
}

bool MulticastRun::Needs(int peer) const {
  if (links_ != nullptr) return links_->Needs(peer);
  if (done_ || peer == rings().rank()) return false;
  if (rings().state() == MulticastRings::State::kNone) {
    return opening_ == nullptr || opening_->Needs(peer);
  }
  if (!written_ && rings().Lags(peer, call_.ring_call)) return true;
  return payloads_[static_cast<size_t>(peer)] == nullptr &&
         std::find(plan_->partners.begin(), plan_->partners.end(), peer) != plan_->partners.end();
}

}  // namespace weft::collectives
