#include "net/tcp/departure.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr absl::Duration kLinger = absl::Seconds(2);

}  // namespace

Departure::Departure(Poller& poller, Link link, std::function<void(Departure*)> on_over)
    : PollHandler(poller),
      link_(std::move(link)),
      on_over_(std::move(on_over)),
      told_taken_(link_.streams.size()) {
  link_.resumption->SetOwner(*this);
  for (auto& stream : link_.streams) {
    stream->SetOwner(*this);
    stream->KeepOwnOnly();
  }
  WantTurn();
}

Departure::~Departure() { link_.resumption->Close(); }

bool Departure::AnyLost() const {
  return std::find(link_.lost.begin(), link_.lost.end(), true) != link_.lost.end();
}

bool Departure::Owes() const {
  if (!on_over_ || !link_.whole) return false;
  if (AnyLost()) return true;
  return std::any_of(link_.streams.begin(), link_.streams.end(), [&](const auto& stream) {
    return stream->open() && (!said_ || stream->queued_frames() > 0 || stream->HasUnacknowledged());
  });
}

size_t Departure::IndexOf(const Stream& stream) const {
  auto found = std::find_if(link_.streams.begin(), link_.streams.end(),
                            [&](const auto& one) { return one.get() == &stream; });
  return static_cast<size_t>(found - link_.streams.begin());
}

bool Departure::OnTurn(absl::Time now) {
  Step(now);
  return true;
}

// No goodbye while a stream has no socket: the other side would not wait for another any more.
void Departure::Step(absl::Time now) {
  if (!on_over_ || AnyLost()) return;
  if (!std::exchange(said_, true)) {
    SetDeadline(now + kLinger);
    for (OutFrame& frame : link_.last_words) link_.streams[0]->QueueLast(std::move(frame));
    for (auto& stream : link_.streams) stream->QueueLast(link_.goodbye);
  }
  for (auto& stream : link_.streams) {
    stream->Write(now);  // which may find it lost, or ended
    if (!on_over_ || AnyLost()) return;
    if (stream->open() && stream->queued_frames() == 0) stream->ShutWriting();
  }
}

void Departure::BeOver() {
  if (!on_over_) return;
  SetDeadline(absl::InfiniteFuture());
  link_.resumption->Close();
  std::fill(link_.lost.begin(), link_.lost.end(), false);
  for (auto& stream : link_.streams) stream->Close();
  std::exchange(on_over_, nullptr)(this);
}

absl::StatusOr<PayloadTarget> Departure::OnFrame(const FrameHeader& header) {
  switch (header.type) {
    case FrameType::kTaken:
      if (header.length == told_taken_.size() * sizeof(uint64_t)) {
        return PayloadTarget{.out = reinterpret_cast<std::byte*>(told_taken_.data())};
      }
      return absl::InvalidArgumentError(absl::StrCat(header.length, " bytes of what was taken on ",
                                                     told_taken_.size(), " sockets"));
    case FrameType::kAddress:
      unwanted_.resize(kWorkerAddressBytesMax);
      return PayloadTarget{.out = unwanted_.data()};
    case FrameType::kData:
      return absl::InvalidArgumentError("data that came to the sending end of a link");
    default:
      return PayloadTarget{};
  }
}

absl::Status Departure::OnFrameDone(const FrameHeader& header, absl::string_view /*notice*/) {
  if (header.type != FrameType::kTaken) return absl::OkStatus();
  for (size_t i = 0; i < link_.streams.size(); ++i) {
    WEFT_RETURN_IF_ERROR(link_.streams[i]->OnTaken(told_taken_[i]));
  }
  return absl::OkStatus();
}

// The other side has ended the link: what it has not taken it does not want.
void Departure::OnEnded(const absl::Status& /*why*/, absl::Time /*now*/) {
  if (!on_over_) return;
  ended_ = true;
  link_.resumption->Close();
  std::fill(link_.lost.begin(), link_.lost.end(), false);
  if (std::none_of(link_.streams.begin(), link_.streams.end(),
                   [](const auto& stream) { return stream->open(); })) {
    BeOver();
  }
}

void Departure::OnLost(Stream& stream, const absl::Status& why, bool /*timed_out*/,
                       absl::Time now) {
  if (!on_over_) return;
  if (ended_) return OnEnded(why, now);
  const size_t index = IndexOf(stream);
  link_.lost[index] = true;
  SetDeadline(absl::InfiniteFuture());
  link_.resumption->Begin(index, now + link_.dead_after, now);
}

void Departure::OnNewSocket(size_t index, uint32_t epoch, FileDescriptor socket,
                            std::string received, absl::Time now) {
  if (!on_over_) return;
  link_.resumption->End(index);
  link_.streams[index]->Resume(std::move(socket), epoch, received, now);
}

void Departure::OnResumed(Stream& stream, uint64_t /*again*/, absl::Time now) {
  if (!on_over_) return;
  link_.lost[IndexOf(stream)] = false;
  if (said_ && !AnyLost()) SetDeadline(now + kLinger);
  WantTurn();
}

void Departure::OnNotReplaced(size_t /*index*/, const absl::Status& why, absl::Time /*now*/) {
  if (!on_over_) return;
  if (absl::IsDeadlineExceeded(why)) {
    WEFT_LOG_WARN(link_.name,
                  ": the link was closed here, but what was sent last, and the end, may ",
                  "not have arrived: ", why.message());
  }
  BeOver();
}

}  // namespace weft::net
