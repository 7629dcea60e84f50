#include "plugins/nccl/comm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/nccl/log.h"

namespace weft::nccl {
namespace {

// Messages after which a link counts as one that measures no round trips.
constexpr int kLinkStateAskedMost = 256;

// NCCL's tags are ints; the sign is kept out of the upper half.
uint64_t KeyOf(int tag) { return static_cast<uint32_t>(tag); }

}  // namespace

CommRequest* Comm::Acquire(size_t limit) {
  if (free_.empty()) {
    if (requests_.size() >= limit) return nullptr;
    requests_.push_back(std::make_unique<CommRequest>());
    requests_.back()->owner = this;
    free_.push_back(requests_.back().get());
  }
  CommRequest* request = free_.back();
  free_.pop_back();
  request->is_flush = false;
  return request;
}

void Comm::Release(CommRequest* request) {
  request->memory.fill(nullptr);
  free_.push_back(request);
}

absl::StatusOr<net::RegionView> Comm::View(const MemoryHandle* memory, void* data,
                                           size_t size) const {
  if (size == 0) return net::RegionView();
  if (memory == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(verb(), " of ", size, " bytes without a memory handle: call regMr first"));
  }
  net::RegionView all = memory->region.view();
  auto begin = reinterpret_cast<uintptr_t>(data), base = reinterpret_cast<uintptr_t>(all.data());
  if (begin < base || begin - base > all.size() || size > all.size() - (begin - base)) {
    return absl::InvalidArgumentError(absl::StrCat(verb(), " of ", size, " bytes at 0x",
                                                   absl::Hex(begin), ", but the handle is of ",
                                                   all.size(), " bytes at 0x", absl::Hex(base)));
  }
  return all.Slice(begin - base, size);
}

absl::Status Comm::Failure(const absl::Status& why, absl::string_view what) const {
  return Annotate(why, absl::StrCat(self_.ToString(), arrow(), peer_.ToString(), ", ", what));
}

void Comm::SetPeer(const PeerInfo& peer) {
  peer_ = peer;
  connection().link().NamePeer(peer.ToString());
}

absl::Status Comm::Test(CommRequest& request, bool* done, int* sizes, absl::Time now) {
  std::lock_guard lock(mutex_);
  auto first = request.parts.begin(), last = first + request.count;
  auto all_done = [&] {
    return std::all_of(first, last, [](const net::Request& part) { return part.done(); });
  };
  *done = all_done();
  if (!*done) {
    connection().Progress(now);
    *done = all_done();
  }
  if (!*done) return absl::OkStatus();
  absl::Status failed;
  for (int i = 0; i < request.count; ++i) {
    const net::Request& part = request.parts[static_cast<size_t>(i)];
    if (sizes != nullptr) sizes[i] = static_cast<int>(part.bytes());
    if (!part.status().ok() && failed.ok()) {
      const auto at = static_cast<size_t>(i);
      failed = Failure(part.status(), request.is_flush
                                          ? absl::StrCat("iflush of ", request.sizes[at], " bytes")
                                          : absl::StrCat(verb(), " of ", request.sizes[at],
                                                         " bytes, tag ", request.tags[at]));
    }
  }
  Release(&request);
  return failed;
}

absl::StatusOr<std::unique_ptr<MemoryHandle>> Comm::Register(void* data, size_t size) {
  WEFT_ASSIGN_OR_RETURN(net::Region region, connection().Register(data, size));
  return std::make_unique<MemoryHandle>(MemoryHandle{std::move(region), false});
}

absl::StatusOr<std::unique_ptr<MemoryHandle>> Comm::RegisterDevice(
    const net::DeviceMemory& memory) {
  WEFT_ASSIGN_OR_RETURN(net::Region region, connection().RegisterDevice(memory));
  return std::make_unique<MemoryHandle>(MemoryHandle{std::move(region), true});
}

void Comm::Deregister(std::unique_ptr<MemoryHandle> memory) {
  std::lock_guard lock(mutex_);  // free again when `memory` goes, which may take it
  const auto count = std::count_if(requests_.begin(), requests_.end(), [&](const auto& request) {
    return std::count(request->memory.begin(), request->memory.end(), memory.get()) > 0;
  });
  if (count == 0 || !connection().link().status().ok()) return;
  const absl::Status why = absl::CancelledError(
      absl::StrCat("memory of ", memory->region.view().size(), " bytes was deregistered with ",
                   count, count == 1 ? " request" : " requests", " under way"));
  LogInfo(absl::StrCat(Failure(why, verb()).message(), "; the connection is given up"));
  connection().link().Break(why);
}

bool Comm::TakeLinkState(absl::Time now, ProfiledLink* state) {
  if (now < link_state_due_) return false;
  std::lock_guard lock(mutex_);
  const net::FlowCounters counters = connection().link().Counters();
  // Before the first answer there is no round trip: the next messages ask again.
  if (counters.rtt_ns == 0 && link_state_asked_ < kLinkStateAskedMost) {
    ++link_state_asked_;
    return false;
  }
  link_state_due_ = now + link_state_wait_;
  link_state_wait_ = std::min(2 * link_state_wait_, absl::Milliseconds(100));
  state->rtt_ns = counters.rtt_ns;
  state->repeats = counters.repeats - repeats_said_;
  repeats_said_ = counters.repeats;
  return true;
}

SendComm::SendComm(Backend& backend, PeerInfo self, const PeerInfo& listener,
                   std::unique_ptr<SendConnection> connection, absl::Time now,
                   absl::Status mismatch)
    : Comm(backend, std::move(self), connection->mutex()),
      connection_(std::move(connection)),
      give_up_(now + backend.connect_timeout()),
      mismatch_(std::move(mismatch)) {
  std::lock_guard lock(mutex_);
  set_up_.begun = now;
  SetPeer(listener);
  // Goes out as soon as the connection stands; a link's first notice always finds room.
  (void)connection_->link().PostNotice(EncodeGreeting(self_));
}

absl::StatusOr<bool> SendComm::Connect(absl::Time now) {
  std::lock_guard lock(mutex_);
  connection_->Progress(now);
  if (connection_->link().connected()) set_up_.connected = std::min(set_up_.connected, now);
  std::string text;
  if (connection_->TakeNotice(&text)) {
    absl::StatusOr<PeerInfo> peer = DecodeGreeting(text);
    absl::Status match = peer.ok() ? CheckMatch(self_, *peer) : peer.status();
    if (!match.ok()) return Failure(match, "connect");
    SetPeer(*peer);
    WEFT_RETURN_IF_ERROR(connection_->Established());
    return true;
  }
  if (!connection_->link().status().ok()) {
    return Failure(mismatch_.ok() ? connection_->link().status() : mismatch_, "connect");
  }
  if (now >= give_up_) {
    return Failure(absl::DeadlineExceededError(absl::StrCat(
                       "no answer within ", absl::FormatDuration(backend_.connect_timeout()),
                       " (WEFT_TRANSPORT_CONNECT_TIMEOUT) on ", connection_->link().Describe(),
                       ": the peer does not call accept; is its process stuck or gone?")),
                   "connect");
  }
  return false;
}

absl::StatusOr<CommRequest*> SendComm::Send(void* data, size_t size, int tag,
                                            const MemoryHandle* memory, absl::Time now) {
  std::lock_guard lock(mutex_);
  if (!connection_->link().status().ok()) {
    return Failure(connection_->link().status(), absl::StrCat("isend of ", size, " bytes"));
  }
  WEFT_ASSIGN_OR_RETURN(net::RegionView view, View(memory, data, size));
  CommRequest* request = Acquire(static_cast<size_t>(abi::kRequestsMax) * abi::kGroupedReceivesMax);
  if (request == nullptr) {
    connection_->Progress(now);
    return nullptr;
  }
  request->count = 1;
  request->tags[0] = tag;
  request->sizes[0] = size;
  request->memory[0] = memory;
  if (connection_->link().PostSend({KeyOf(tag), 0}, view, request->parts.data()) ==
      net::Posted::kNotYet) {
    Release(request);
    request = nullptr;
  }
  connection_->Progress(now);
  return request;
}

ReceiveComm::ReceiveComm(Backend& backend, PeerInfo self,
                         std::unique_ptr<ReceiveConnection> connection, const SetUpTimes& times)
    : Comm(backend, std::move(self), connection->mutex()), connection_(std::move(connection)) {
  set_up_ = times;
  peer_.host = "its sender";
  peer_.device = "not known yet";
}

absl::StatusOr<bool> ReceiveComm::Greet(absl::Time now) {
  std::lock_guard lock(mutex_);
  connection_->Progress(now);
  std::string text;
  if (!connection_->TakeNotice(&text)) {
    if (connection_->link().status().ok()) return false;
    return Failure(connection_->link().status(), "accept");
  }
  absl::StatusOr<PeerInfo> peer = DecodeGreeting(text);
  absl::Status match = peer.ok() ? CheckMatch(self_, *peer) : peer.status();
  if (peer.ok()) SetPeer(*peer);
  (void)connection_->link().PostNotice(match.ok() ? EncodeGreeting(self_)
                                                  : EncodeRefusal(match.message()));
  connection_->Progress(now);
  if (!match.ok()) return Failure(match, "accept");
  WEFT_RETURN_IF_ERROR(connection_->Established());
  return true;
}

absl::StatusOr<CommRequest*> ReceiveComm::Receive(const std::vector<ReceivePart>& parts,
                                                  absl::Time now) {
  std::lock_guard lock(mutex_);
  if (!connection_->link().status().ok()) {
    return Failure(connection_->link().status(),
                   absl::StrCat("irecv of ", parts.size(), " messages"));
  }
  std::array<net::RegionView, abi::kGroupedReceivesMax> views;
  for (size_t i = 0; i < parts.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(views[i], View(parts[i].memory, parts[i].data, parts[i].size));
  }
  CommRequest* request = Acquire(abi::kRequestsMax);
  if (request == nullptr) {
    connection_->Progress(now);
    return nullptr;
  }
  request->count = static_cast<int>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    request->tags[i] = parts[i].tag;
    request->sizes[i] = parts[i].size;
    request->memory[i] = parts[i].memory;
    // A link admits at least as many as there are requests (see Prepare() of the backend).
    net::Posted posted = connection_->link().PostReceive({KeyOf(parts[i].tag), 0},
                                                         {.out = views[i]}, &request->parts[i]);
    WEFT_CHECK(posted == net::Posted::kAccepted, "part " << i << " of " << parts.size());
  }
  connection_->Progress(now);
  return request;
}

absl::StatusOr<CommRequest*> ReceiveComm::Flush(const std::vector<ReceivePart>& parts,
                                                absl::Time now) {
  // All parts of a group are of one GPU: what the last of them has seen, all have.
  auto last = std::find_if(parts.rbegin(), parts.rend(), [](const ReceivePart& part) {
    return part.size > 0 && part.memory != nullptr && part.memory->is_device;
  });
  if (last == parts.rend()) return nullptr;
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(const net::RegionView view, View(last->memory, last->data, last->size));
  // NCCL has no more of them than receives, and takes a null request for "done".
  CommRequest* request = Acquire(SIZE_MAX);
  request->count = 1;
  request->is_flush = true;
  request->sizes[0] = last->size;
  request->memory[0] = last->memory;
  connection_->link().Flush(view, request->parts.data());
  connection_->Progress(now);
  return request;
}

absl::StatusOr<std::unique_ptr<ReceiveComm>> ListenComm::Accept(absl::Time now) {
  absl::Duration patience = kAcceptPatience * backend_.connect_timeout();
  if (give_up_ == absl::InfinitePast()) give_up_ = now + patience;
  while (true) {
    absl::StatusOr<std::unique_ptr<ReceiveConnection>> connection = listener_->Accept(now);
    if (!connection.ok()) {
      return Annotate(connection.status(), absl::StrCat(self_.ToString(), ", accept"));
    }
    if (*connection == nullptr) break;
    arriving_.push_back(std::make_unique<ReceiveComm>(backend_, self_, *std::move(connection),
                                                      SetUpTimes{give_up_ - patience, now}));
  }
  for (size_t i = 0; i < arriving_.size(); ++i) {
    absl::StatusOr<bool> greeted = arriving_[i]->Greet(now);
    if (greeted.ok() && !*greeted) continue;
    std::unique_ptr<ReceiveComm> one = std::move(arriving_[i]);
    arriving_.erase(arriving_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!greeted.ok()) return greeted.status();
    give_up_ = absl::InfinitePast();
    return one;
  }
  if (now < give_up_) return nullptr;
  return absl::DeadlineExceededError(absl::StrCat(
      "nobody has connected to ", self_.ToString(), " at ", listener_->address().ToString(),
      " within ", absl::FormatDuration(patience), " (", kAcceptPatience,
      " times WEFT_TRANSPORT_CONNECT_TIMEOUT); has the peer loaded the same plugin, and does a "
      "firewall let this port through?"));
}

}  // namespace weft::nccl
