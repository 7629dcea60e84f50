#include "tools/bw/link/stream.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/bw/link/check_pattern.h"

namespace weft::link_bw {
namespace {

constexpr int64_t kMemoryMax = 64 << 20;  // of one end of a flow
constexpr net::MessageKey kStreamKey{.tag = 1};

// Bytes of a marker: another size than the messages.
size_t MarkerBytes(size_t size) { return size == 0 ? 1 : 0; }

int SlotsFor(const Load& load, const Requests& requests) {
  return load.one_buffer ? 1 : requests.depth();
}

}  // namespace

Lengths Lengths::Of(const Load& load) {
  Lengths lengths;
  lengths.iterations = load.iterations;
  lengths.warmup_iterations = std::max<int64_t>(load.iterations / 10, 1);
  lengths.window = absl::ToInt64Nanoseconds(load.duration);
  lengths.warmup = lengths.window / 5;
  return lengths;
}

int DepthFor(const Load& load, Bytes size) {
  if (load.one_buffer) return load.depth;
  const int64_t fits = kMemoryMax / std::max<int64_t>(size.count(), 1);
  return static_cast<int>(std::clamp<int64_t>(fits, std::min(load.depth, 2), load.depth));
}

// ---- The sender

StreamSender::StreamSender(MeasuredLinks& links, int to, size_t size, const Load& load)
    : links_(links),
      to_(to),
      size_(size),
      check_(load.check),
      post_list_(load.post_list),
      lengths_(Lengths::Of(load)),
      requests_(DepthFor(load, Bytes(static_cast<int64_t>(size)))) {}

absl::StatusOr<std::unique_ptr<StreamSender>> StreamSender::Create(MeasuredLinks& links, int to,
                                                                   Bytes size, const Load& load) {
  std::unique_ptr<StreamSender> sender(
      new StreamSender(links, to, static_cast<size_t>(size.count()), load));
  WEFT_ASSIGN_OR_RETURN(sender->slots_,
                        Slots::Allocate(links.transport(), std::max<size_t>(sender->size_, 1),
                                        SlotsFor(load, sender->requests_)));
  sender->started_ = links.now();
  return sender;
}

bool StreamSender::Enough() const {
  if (lengths_.iterations > 0) return posted_ >= lengths_.iterations + lengths_.warmup_iterations;
  // The tail covers receivers that began a little later.
  return links_.now() - started_ >= lengths_.window + 2 * lengths_.warmup;
}

void StreamSender::Fill(int64_t message) {
  const int slot = static_cast<int>(message % requests_.depth());
  WritePattern(slots_.view(slot, size_).data(), size_, message);
}

absl::Status StreamSender::Pump() {
  while (taken_ < posted_ && requests_[taken_].done()) {
    WEFT_RETURN_IF_ERROR(requests_[taken_].status());
    ++taken_;
  }
  const int64_t room = requests_.depth() - (posted_ - taken_);
  if (room < post_list_ && posted_ > taken_) return absl::OkStatus();
  for (int64_t i = 0; i < room && posted_ < total_; ++i) {
    if (total_ == INT64_MAX && Enough()) {
      markers_from_ = posted_;
      total_ = posted_ + requests_.depth();
    }
    const bool marker = posted_ >= markers_from_;
    if (check_ && !marker) Fill(posted_);
    const int slot = static_cast<int>(posted_ % requests_.depth());
    net::RegionView view = slots_.view(slot, marker ? MarkerBytes(size_) : size_);
    if (links_.to(to_).PostSend(kStreamKey, view, &requests_[posted_]) == net::Posted::kNotYet)
      break;
    ++posted_;
  }
  const int64_t elapsed = links_.now() - started_;
  const bool counts = lengths_.iterations > 0;
  if (phase_ == Phase::kBefore &&
      (counts ? taken_ >= lengths_.warmup_iterations : elapsed >= lengths_.warmup)) {
    phase_ = Phase::kWindow;
  }
  if (phase_ == Phase::kWindow &&
      (counts ? taken_ >= markers_from_ : elapsed >= lengths_.warmup + lengths_.window)) {
    phase_ = Phase::kAfter;
  }
  return absl::OkStatus();
}

// ---- The receiver

StreamReceiver::StreamReceiver(MeasuredLinks& links, int from, size_t size, const Load& load)
    : links_(links),
      from_(from),
      size_(size),
      check_(load.check),
      lengths_(Lengths::Of(load)),
      requests_(DepthFor(load, Bytes(static_cast<int64_t>(size)))) {}

absl::StatusOr<std::unique_ptr<StreamReceiver>> StreamReceiver::Create(MeasuredLinks& links,
                                                                       int from, Bytes size,
                                                                       const Load& load) {
  std::unique_ptr<StreamReceiver> receiver(
      new StreamReceiver(links, from, static_cast<size_t>(size.count()), load));
  WEFT_ASSIGN_OR_RETURN(receiver->slots_,
                        Slots::Allocate(links.transport(), std::max<size_t>(receiver->size_, 1),
                                        SlotsFor(load, receiver->requests_)));
  return receiver;
}

bool StreamReceiver::IsRight(int64_t message) {
  const int slot = static_cast<int>(message % requests_.depth());
  return HasPattern(slots_.view(slot, size_).data(), size_, message);
}

void StreamReceiver::Count(int64_t now) {
  if (taken_ == 1) first_ = now;
  const bool counts = lengths_.iterations > 0;
  if (phase_ == Phase::kBefore) {
    if (counts ? taken_ >= lengths_.warmup_iterations : now - first_ >= lengths_.warmup) {
      phase_ = Phase::kWindow;
      begin_ = end_ = now;
    }
    return;
  }
  if (phase_ != Phase::kWindow) return;
  if (!counts && now - begin_ > lengths_.window) {
    phase_ = Phase::kAfter;
    return;
  }
  end_ = now;
  ++counted_;
  if (counts) return;
  const int64_t part = (now - begin_) * kParts / lengths_.window;
  ++parts_[static_cast<size_t>(std::min<int64_t>(part, kParts - 1))];
}

absl::Status StreamReceiver::Pump() {
  while (taken_ < posted_ && requests_[taken_].done()) {
    WEFT_RETURN_IF_ERROR(requests_[taken_].status());
    if (requests_[taken_].bytes() == size_) {
      if (check_ && !IsRight(taken_)) ++wrong_;
      ++taken_;
      Count(links_.now());
    } else {
      // The first of `depth` markers; each needs a receive.
      if (total_ == INT64_MAX) total_ = taken_ + requests_.depth();
      phase_ = Phase::kAfter;
      ++taken_;
    }
  }
  const size_t room = std::max<size_t>(size_, 1);
  while (posted_ < total_ && posted_ - taken_ < requests_.depth()) {
    const int slot = static_cast<int>(posted_ % requests_.depth());
    net::ReceiveTarget target;
    target.out = slots_.view(slot, room);
    if (links_.from(from_).PostReceive(kStreamKey, target, &requests_[posted_]) ==
        net::Posted::kNotYet) {
      break;
    }
    ++posted_;
  }
  return absl::OkStatus();
}

StreamResult StreamReceiver::result() const {
  StreamResult result;
  result.messages = counted_;
  result.bytes = counted_ * static_cast<int64_t>(size_);
  result.seconds = static_cast<double>(end_ - begin_) / 1e9;
  result.wrong = wrong_;
  const int64_t best = *std::max_element(parts_.begin(), parts_.end());
  if (lengths_.iterations == 0 && lengths_.window > 0) {
    result.peak = static_cast<double>(best) * static_cast<double>(size_) * kParts /
                  (static_cast<double>(lengths_.window) / 1e9);
  }
  return result;
}

}  // namespace weft::link_bw
