#include "net/tcp/link_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"
#include "net/tcp/lane_report.h"

namespace weft::net {
namespace {

constexpr size_t kNoticesQueuedMax = 256;  // then kNotYet
// One turn of one link writes at most this many times on each socket, so that the others get
// theirs.
constexpr int kWritesPerTurn = 4;
constexpr size_t kFramesPerWrite = 64;
// What the other side sent before it went may still be on its way on the other sockets.
constexpr absl::Duration kEndingGrace = absl::Seconds(1);
// While the last messages of a link that the other side has closed wait for receives.
constexpr absl::Duration kReceivesLookEvery = absl::Milliseconds(100);
// Bytes between two acknowledgements of copied messages.
constexpr uint64_t kUntoldMax = 64 << 10;
// How often sockets that wait for the other side are looked at, and how long nothing is received
// until it is made to acknowledge something; then twice as long each.
constexpr absl::Duration kSilenceLookEvery = absl::Milliseconds(100);
constexpr absl::Duration kPokeFirst = absl::Milliseconds(250);
constexpr absl::Duration kPokeLongest = absl::Seconds(4);
// The log, of one socket.
constexpr absl::Duration kTellLossesEvery = absl::Seconds(10);

void SilenceKeepAlive(const std::vector<FileDescriptor>& sockets) {
  const int off = 0;
  for (const FileDescriptor& fd : sockets) {
    setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off));
  }
}

OutFrame Goodbye(uint64_t promised) {
  OutFrame goodbye;
  goodbye.header.type = FrameType::kGoodbye;
  goodbye.header.total = promised;
  return goodbye;
}

}  // namespace

LinkSession::~LinkSession() = default;

void LinkSession::Finish() {
  if (context_.path_news != nullptr) context_.path_news->Remove(*this);
  if (!status_.ok()) return;
  if (path_ != nullptr) path_->Leave();
  const bool idle = !HasData();
  status_ = absl::CancelledError(absl::StrCat("the link to ", PeerText(), " was closed here"));
  FailRequests(status_);
  std::deque<OutFrame> last_words = TakeLastWords();
  const bool wants_waiting = context_.await_goodbyes || !last_words.empty();
  const auto any = [this](bool (Stream::*is)() const) {
    return std::any_of(streams_.begin(), streams_.end(),
                       [is](const auto& stream) { return (stream.get()->*is)(); });
  };
  if (MayDepart() && (AnyLost() || any(&Stream::HasUntaken))) {
    const bool owes = wants_waiting || any(&Stream::HasUnacknowledged);
    return Depart(std::move(last_words), promised(), AnyLost() || (idle && owes));
  }
  if (resumption_ != nullptr) resumption_->Close();
  for (auto& stream : streams_) {
    const bool owes = wants_waiting || stream->HasUnacknowledged();
    const bool whole = idle && stream->queued_frames() == 0 && owes;
    last_words.push_back(Goodbye(promised()));
    FileDescriptor fd = stream->CloseGracefully(std::exchange(last_words, {}));
    if (fd) context_.lingering.Add(poller(), std::move(fd), whole);
  }
}

// For the first stream.
std::deque<OutFrame> LinkSession::TakeLastWords() {
  std::deque<OutFrame> last_words;
  for (FrameQueue* waiting : {&control_, &elsewhere_}) {
    for (OutFrame& frame : waiting->TakeAll()) {
      if (frame.header.type == FrameType::kNotice) last_words.push_back(std::move(frame));
    }
  }
  if (OwesTelling()) last_words.push_back(TellTaken());
  return last_words;
}

bool LinkSession::AnyLost() const {
  return std::any_of(losses_.begin(), losses_.end(), [](const Loss& loss) { return loss.lost; });
}

// The connecting end, which can make new sockets, of a link that the other side has not ended.
bool LinkSession::MayDepart() const {
  return resumption_ != nullptr && is_sender() && ending_.ok() && !goodbye_seen_;
}

// Leaves streams without sockets here, as those that called us may look at them.
void LinkSession::Depart(std::deque<OutFrame> last_words, uint64_t promised, bool whole) {
  Departure::Link link;
  for (size_t i = 0; i < streams_.size(); ++i) {
    link.streams.push_back(
        std::exchange(streams_[i], std::make_unique<Stream>(poller(), *this, /*resumable=*/false)));
    link.lost.push_back(losses_[i].lost);
  }
  link.resumption = std::move(resumption_);
  link.last_words = std::move(last_words);
  link.goodbye = Goodbye(promised);
  link.whole = whole;
  link.name = absl::StrCat(PeerText(), ", ", description_);
  link.dead_after = context_.tuning.dead_after;
  context_.lingering.Add(poller(), std::move(link));
}

void LinkSession::Attach(std::vector<FileDescriptor> sockets, std::vector<std::string> received) {
  int first = sockets[0].get();
  std::string local = LocalAddress(first).ToString(), remote = RemoteAddress(first).ToString();
  description_ = absl::StrCat(context_.name, " ", is_sender() ? local : remote, " -> ",
                              is_sender() ? remote : local, " (", sockets.size(),
                              sockets.size() == 1 ? " socket)" : " sockets)");
  for (size_t i = 0; i < sockets.size(); ++i) {
    streams_.push_back(std::make_unique<Stream>(poller(), *this, resumption_ != nullptr));
  }
  losses_.resize(sockets.size());
  if (!context_.keep_alive) SilenceKeepAlive(sockets);
  for (size_t i = 0; i < sockets.size() && status_.ok(); ++i) {
    absl::Status started = streams_[i]->Start(std::move(sockets[i]), std::move(received[i]));
    if (!started.ok()) Break(started);
  }
  if (context_.ways && resumption_ != nullptr) {
    if (context_.path_news == nullptr) {
      context_.path_news = std::make_unique<PathNews>(poller(), context_.ways);
    }
    context_.path_news->Add(*this);
  }
  WantTurn();
  if (path_ == nullptr || !status_.ok()) return;
  if (absl::Status started = path_->Start(); !started.ok()) Break(started);
}

void LinkSession::TellOfPaths(absl::Time now) {
  if (!context_.ways || resumption_ == nullptr) return;
  const uint64_t version = context_.ways->reports_version();
  if (version == paths_told_) return;
  paths_told_ = version;
  FrameHeader header;
  header.type = FrameType::kPaths;
  std::string text = context_.ways->Reports();
  header.length = text.size();
  QueueControl(header, std::move(text));
  if (MayDepart()) resumption_->FollowPaths(now);
}

std::string LinkSession::PeerText() const {
  return peer_name_.empty() ? absl::StrCat("rank ", peer_.value()) : peer_name_;
}

std::string LinkSession::Describe() const {
  const std::string more = path_ != nullptr ? path_->Describe() : "";
  return more.empty() ? description_ : absl::StrCat(description_, "; ", more);
}

FlowCounters LinkSession::WithLanes(FlowCounters counters) const {
  counters.repeats = sockets_replaced_;
  if (path_ != nullptr) path_->AddTo(&counters);
  return counters;
}

std::vector<LaneReport> LinkSession::Lanes() const {
  if (path_ != nullptr) return path_->Lanes();
  std::vector<LaneReport> lanes;
  for (const auto& stream : streams_) {
    if (!stream->open()) continue;
    const SocketAddress local = LocalAddress(stream->fd()), remote = RemoteAddress(stream->fd());
    const SocketAddress& from = is_sender() ? local : remote;
    LaneReport lane = ReadLane(stream->fd(), is_sender());
    lane.source_port = from.port();
    lane.name = absl::StrCat(from.ToString(), " -> ", (is_sender() ? remote : local).ToString());
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

void LinkSession::QueueControl(const FrameHeader& header, std::string payload) {
  OutFrame frame;
  frame.header = header;
  frame.owned = std::move(payload);
  QueueFor(header.type).Push(std::move(frame));
  WantTurn();
}

void LinkSession::Follow(SendMatching::Outcome outcome) {
  if (outcome == SendMatching::Outcome::kMatched) WantTurn();
  if (outcome == SendMatching::Outcome::kMismatch) QueueControl(sends_->mismatch());
}

// A socket's share of what waits, from one frame to a few.
uint64_t LinkSession::WriteBytes() const {
  const uint64_t frame = context_.frame_bytes, growth = context_.frame_growth;
  if (sends_ == nullptr) return frame;
  const uint64_t most = std::max(frame, std::min(frame, kFrameBytesMax / growth) * growth);
  const uint64_t share = sends_->bytes_left() / std::max<size_t>(OpenStreams(), 1) / 64 * 64;
  return std::clamp(share, frame, most);
}

void LinkSession::FailRequests(const absl::Status& why) {
  if (path_ != nullptr) path_->Close(why);
  is_sender() ? sends_->Fail(why) : receives_->Fail(why);
}

Posted LinkSession::QueueNotice(absl::string_view bytes) {
  WEFT_CHECK(bytes.size() <= kNoticeBytesMax, "size=" << bytes.size());
  if (!status_.ok()) return Posted::kAccepted;  // as lost as one on its way would be
  if (notices_queued() >= kNoticesQueuedMax) return Posted::kNotYet;
  OutFrame frame;
  frame.header.type = FrameType::kNotice;
  frame.header.length = bytes.size();
  frame.owned = std::string(bytes);
  QueueFor(FrameType::kNotice).Push(std::move(frame));
  WantTurn();
  return Posted::kAccepted;
}

size_t LinkSession::OpenStreams() const {
  return static_cast<size_t>(
      std::count_if(streams_.begin(), streams_.end(), [](const auto& s) { return s->open(); }));
}

// Control goes before data. One call takes no more than a socket's share of what waits, so that a
// large message is spread over all of them. Returns the bytes of data.
uint64_t LinkSession::Fill(Stream& stream, bool with_data) {
  if (&stream == streams_[0].get()) {
    while (!control_.empty() && stream.queued_frames() < kFramesPerWrite) {
      stream.Queue(std::move(control_.front()));
      control_.Pop();
    }
  }
  OutFrame frame;
  const uint64_t limit = WriteBytes();
  uint64_t bytes = 0;
  while (with_data && stream.queued_frames() < kFramesPerWrite && stream.queued_bytes() < limit &&
         sends_->NextData(WriteBytes(), &frame)) {
    bytes += frame.header.length;
    stream.Queue(std::move(frame));
  }
  return bytes;
}

// Messages of less than a frame take turns on the sockets, by a frame of bytes: a planned link has
// a socket on each of its paths, and the first one alone would leave the others idle.
void LinkSession::TakeNextFirst() {
  data_first_ = (data_first_ + 1) % streams_.size();
  data_on_first_ = 0;
}

// For the sake of small messages, which nobody waits for, once in a while; else when a message is
// whole. All goes by stream 0, whichever sockets it speaks of.
bool LinkSession::OwesTelling() const {
  if (resumption_ == nullptr) return false;
  return owes_telling_ || std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
           return stream->untold() >= kUntoldMax;
         });
}

OutFrame LinkSession::TellTaken() {
  OutFrame frame;
  frame.header.type = FrameType::kTaken;
  frame.header.length = streams_.size() * sizeof(uint64_t);
  for (auto& stream : streams_) {
    const uint64_t taken = stream->taken();
    frame.owned.append(reinterpret_cast<const char*>(&taken), sizeof(taken));
    stream->NoteTold();
  }
  owes_telling_ = false;
  return frame;
}

bool LinkSession::OnTurn(absl::Time now) {
  if (!attached() || !status_.ok()) return false;
  if (death_look_at_ == absl::InfinitePast()) LookForDeath(now);
  TellOfPaths(now);
  if (streams_[0]->CanWrite() && OwesTelling()) control_.PushFront(TellTaken());
  if (!seeks_silence_ && MayDepart() && (HasData() || AwaitsPeer() || !control_.empty())) {
    seeks_silence_ = true;
    poke_after_ = kPokeFirst;
    SetDeadlineOfLooks(now);
  }
  bool moved = false;
  while (!elsewhere_.empty()) {
    if (!path_->SendControl(elsewhere_.front())) break;
    elsewhere_.Pop();
    moved = true;
  }
  if (send_path_ != nullptr) send_path_->SendData();
  const bool with_data = path_ == nullptr && is_sender();
  for (int round = 0; round < kWritesPerTurn; ++round) {
    bool more = false;
    const size_t count = streams_.size(), first = data_first_;
    for (size_t i = 0; i < count; ++i) {
      const size_t index = (first + i) % count;
      Stream& stream = *streams_[index];
      if (!stream.CanWrite()) {
        if (index == data_first_) TakeNextFirst();
        continue;
      }
      const uint64_t bytes = Fill(stream, with_data);
      if (index == data_first_) {
        data_on_first_ += bytes;
        if (data_on_first_ >= context_.frame_bytes) TakeNextFirst();
      }
      if (stream.queued_frames() == 0) continue;
      moved |= stream.Write(now);
      if (!status_.ok()) return moved;
      more |= stream.CanWrite();
    }
    bool waiting = HasData() || (!control_.empty() && streams_[0]->CanWrite());
    if (!more || !waiting) return moved;
  }
  WantTurn();
  return moved;
}

absl::StatusOr<PayloadTarget> LinkSession::OnFrame(const FrameHeader& header) {
  switch (header.type) {
    case FrameType::kNotice:
    case FrameType::kPaths:
      return PayloadTarget{};
    case FrameType::kGoodbye:
      goodbye_seen_ = true;
      peer_promised_ = header.total;
      return PayloadTarget{};
    case FrameType::kTaken: {
      if (resumption_ == nullptr || header.length != streams_.size() * sizeof(uint64_t)) {
        return absl::InvalidArgumentError(absl::StrCat(
            header.length, " bytes of what was taken on ", streams_.size(), " sockets"));
      }
      told_taken_.resize(streams_.size());
      PayloadTarget target;
      target.out = reinterpret_cast<std::byte*>(told_taken_.data());
      return target;
    }
    default:
      break;
  }
  if (path_ != nullptr) return path_->OnFrame(header);
  if (receives_ != nullptr) return receives_->OnFrame(header);
  WEFT_RETURN_IF_ERROR(sends_->Admit(header));
  return PayloadTarget{};
}

absl::Status LinkSession::OnFrameDone(const FrameHeader& header, absl::string_view notice) {
  if (header.type == FrameType::kNotice) {
    context_.options.events->OnNotice(link_, notice);
    return absl::OkStatus();
  }
  if (header.type == FrameType::kGoodbye) return absl::OkStatus();
  if (header.type == FrameType::kPaths) {
    if (!context_.ways) return absl::OkStatus();  // there may be a plan on the other side alone
    WEFT_RETURN_IF_ERROR(context_.ways->Hear(notice));
    if (context_.path_news != nullptr) context_.path_news->Tell();
    return absl::OkStatus();
  }
  if (header.type == FrameType::kTaken) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      WEFT_RETURN_IF_ERROR(streams_[i]->OnTaken(told_taken_[i]));
    }
    return absl::OkStatus();
  }
  if (path_ != nullptr) return path_->OnFrameDone(header);
  if (receives_ == nullptr) {
    Follow(sends_->OnClearToSend(header));
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(receives_->OnFrameDone(header));
  if (receives_->TakeOwesTelling()) OweTelling();
  return absl::OkStatus();
}

void LinkSession::OnEnded(const absl::Status& why, absl::Time now) {
  if (!status_.ok()) return;
  if (ending_.ok()) ending_ = why;
  bool protocol = !absl::IsUnavailable(why);
  if (protocol) ending_ = why;
  if (protocol || (OpenStreams() == 0 && !StillArriving())) {
    Break(ending_);
  } else {
    SetDeadline(now + kEndingGrace);
  }
}

size_t LinkSession::IndexOf(const Stream& stream) const {
  auto found = std::find_if(streams_.begin(), streams_.end(),
                            [&](const auto& one) { return one.get() == &stream; });
  return static_cast<size_t>(found - streams_.begin());
}

std::string LinkSession::SocketText(size_t index) const {
  return absl::StrCat("socket ", index, " of ", streams_.size());
}

void LinkSession::OnLost(Stream& stream, const absl::Status& why, bool timed_out, absl::Time now) {
  if (!status_.ok()) return;
  Lose(IndexOf(stream), why, timed_out ? context_.tuning.dead_after : absl::ZeroDuration(), now);
}

// From the beginning of the silence on there is tcp.dead_after, and half of it at least. A socket
// that is lost before the other side has spoken on it has replaced nothing.
void LinkSession::Lose(size_t index, const absl::Status& why, absl::Duration silent,
                       absl::Time now) {
  if (!ending_.ok() || goodbye_seen_) return OnEnded(why, now);
  const absl::Duration dead_after = context_.tuning.dead_after;
  BeginLoss(index, why.message(), std::max(dead_after - silent, dead_after / 2), now);
  const Loss& loss = losses_[index];
  if (now < loss.give_up) return resumption_->Begin(index, loss.give_up, now);
  OnNotReplaced(index, absl::DeadlineExceededError(why.message()), now);
}

void LinkSession::BeginLoss(size_t index, absl::string_view why, absl::Duration patience,
                            absl::Time now) {
  Loss& loss = losses_[index];
  if (loss.lost) return;
  loss.lost = true;
  loss.why = std::string(why);
  loss.since = now;
  loss.give_up = now + patience;
  if (now - loss.told < kTellLossesEvery) return;
  loss.told = now;
  WEFT_LOG_WARN(PeerText(), ", ", description_, ", ", SocketText(index), " was lost (", loss.why,
                "); connecting anew, to go on where it was");
}

// A socket that stands gives way to another one, on another way.
void LinkSession::BeginMove(size_t index, absl::Time now) {
  Loss& loss = losses_[index];
  loss.lost = true;
  loss.why = "another takes its place";
  loss.since = now;
  loss.give_up = now + context_.tuning.dead_after;
  if (now - loss.told < kTellLossesEvery) return;
  loss.told = now;
  WEFT_LOG_INFO(PeerText(), ", ", description_, ", ", SocketText(index), " gives way to another",
                context_.ways ? absl::StrCat("; ", context_.ways->WhyNow()) : "");
}

void LinkSession::OnNewSocket(size_t index, uint32_t epoch, FileDescriptor socket,
                              std::string received, absl::Time now) {
  if (!status_.ok() || !ending_.ok() || goodbye_seen_) return;
  if (!losses_[index].lost) BeginMove(index, now);
  resumption_->End(index);
  streams_[index]->Resume(std::move(socket), epoch, received, now);
}

void LinkSession::OnResumed(Stream& stream, uint64_t again, absl::Time now) {
  const size_t index = IndexOf(stream);
  Loss& loss = losses_[index];
  loss.lost = false;
  ++sockets_replaced_;
  if (loss.told >= loss.since) {
    WEFT_LOG_INFO(PeerText(), ", ", description_, ", ", SocketText(index), " was replaced after ",
                  absl::FormatDuration(now - loss.since), "; ", again, " bytes are sent again");
  }
  WantTurn();
}

void LinkSession::OnNotReplaced(size_t index, const absl::Status& why, absl::Time now) {
  if (!status_.ok()) return;
  Loss& loss = losses_[index];
  loss.lost = false;  // nobody looks for it any more
  if (!absl::IsDeadlineExceeded(why)) {
    return OnEnded(absl::UnavailableError(absl::StrCat(loss.why, "; then ", why.message())), now);
  }
  Break(absl::UnavailableError(
      absl::StrCat(SocketText(index), " was lost (", loss.why, ") and not replaced within ",
                   absl::FormatDuration(absl::Trunc(now - loss.since, absl::Milliseconds(1))),
                   " (tcp.dead_after is ", absl::FormatDuration(context_.tuning.dead_after),
                   "): ", why.message(), "; its host is down, or the path to it is; try ping")));
}

void LinkSession::NoteArrival() {
  if (ending_.ok() || OpenStreams() > 0) return;
  if (StillArriving()) {
    extended_ = true;
  } else {
    SetDeadline(absl::InfinitePast());
  }
}

void LinkSession::OnDeadline(absl::Time now) {
  if (status_.ok() && path_ != nullptr && path_->AwaitsReceives()) {
    return SetDeadline(now + kReceivesLookEvery);
  }
  if (std::exchange(extended_, false)) return SetDeadline(now + kEndingGrace);
  if (!ending_.ok()) return Break(ending_);
  if (!attached() || !status_.ok()) return;
  if (now >= death_look_at_) LookForDeath(now);
  if (status_.ok() && seeks_silence_) LookForSilence(now);
}

void LinkSession::SetDeadlineOfLooks(absl::Time now) {
  if (!ending_.ok()) return;
  SetDeadline(seeks_silence_ ? std::min(death_look_at_, now + kSilenceLookEvery) : death_look_at_);
}

// On the connecting end, which can dial another way. What the other side sends shows that its
// answers get through only where something is to be acknowledged: while it is waited for, it is
// told now and then what was taken.
void LinkSession::LookForSilence(absl::Time now) {
  seeks_silence_ = false;
  if (!MayDepart()) return SetDeadlineOfLooks(now);
  const bool awaits = AwaitsPeer();
  seeks_silence_ = awaits;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i]->open()) continue;
    const absl::StatusOr<tcp_info> info = ConnectionInfo(streams_[i]->fd());
    if (!info.ok()) continue;
    if (info->tcpi_unacked > 0) {
      seeks_silence_ = true;
      if (LooksStalled(*info)) resumption_->Suspect(i, now);
    } else if (i == 0 && awaits) {
      const auto silent = absl::Milliseconds(info->tcpi_last_data_recv);
      if (silent < kPokeFirst) poke_after_ = kPokeFirst;
      if (silent < poke_after_) continue;
      poke_after_ = std::min(2 * poke_after_, kPokeLongest);
      OweTelling();
    }
  }
  SetDeadlineOfLooks(now);
}

// Four times in tcp.dead_after.
void LinkSession::LookForDeath(absl::Time now) {
  absl::Duration dead_after = context_.tuning.dead_after;
  death_look_at_ = now + dead_after / 4;
  if (path_ != nullptr && path_->HearsPeer(now)) return SetDeadlineOfLooks(now);
  for (auto& stream : streams_) {
    if (!stream->open()) continue;
    absl::StatusOr<tcp_info> info = ConnectionInfo(stream->fd());
    const bool resumable = resumption_ != nullptr && ending_.ok() && !goodbye_seen_;
    if (!info.ok() || !LooksDead(*info, resumable ? dead_after / 2 : dead_after)) continue;
    const std::string silence =
        absl::StrCat("its host has not answered for ", info->tcpi_last_ack_recv, " ms");
    if (!resumable) {
      return Break(absl::UnavailableError(
          absl::StrCat(silence, " (tcp.dead_after is ", absl::FormatDuration(dead_after),
                       "): it is down, or the path to it is; try ping")));
    }
    // Perhaps only this socket's path is dead.
    stream->Abandon();
    Lose(IndexOf(*stream), absl::UnavailableError(silence),
         absl::Milliseconds(info->tcpi_last_ack_recv), now);
    if (!status_.ok()) return;
  }
  SetDeadlineOfLooks(now);
}

void LinkSession::Break(const absl::Status& why) {
  if (!status_.ok()) return;
  absl::Status reason = why;
  FailureScope scope = FailureScope::kConnection;
  if (const absl::Status known = path_ != nullptr ? path_->failure() : absl::OkStatus();
      !known.ok()) {
    reason = known;
  } else if (goodbye_seen_ && absl::IsUnavailable(why)) {
    reason = absl::UnavailableError("it closed the link; it has finished or given up: see its log");
  } else if (!ending_.ok() && absl::IsUnavailable(why)) {
    reason = absl::UnavailableError(
        absl::StrCat(why.message(), "; its process or its host has died: see its log"));
    scope = FailureScope::kProcess;
  }
  status_ = WithFailure(Annotate(reason, absl::StrCat(PeerText(), ", ", description_,
                                                      ", interface ", context_.interface)),
                        {.scope = scope, .device = context_.interface});
  SetDeadline(absl::InfiniteFuture());
  if (MayDepart() && AnyLost()) Depart({}, /*promised=*/0, /*whole=*/false);
  if (resumption_ != nullptr) resumption_->Close();
  for (auto& stream : streams_) {
    if (resumption_ == nullptr) {
      stream->Close();
      continue;
    }
    // In order, although something may be unread: a reset would have the other side look for us.
    // What went elsewhere is not waited for any more.
    if (FileDescriptor fd = stream->CloseGracefully({Goodbye(/*promised=*/0)})) {
      context_.lingering.Add(poller(), std::move(fd), /*whole=*/false);
    }
  }
  control_.TakeAll();
  elsewhere_.TakeAll();
  FailRequests(status_);
  context_.options.events->OnBroken(link_, status_);
}

}  // namespace weft::net
