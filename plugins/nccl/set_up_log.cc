#include "plugins/nccl/set_up_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::nccl {
namespace {

constexpr std::array<const char*, 5> kNames = {"listen", "waiting", "handshake", "greeting",
                                               "memory"};
constexpr absl::Duration kBetweenLines = absl::Seconds(1);

std::string Milliseconds(absl::Duration duration) {
  return absl::StrFormat("%.3g ms", absl::ToDoubleMilliseconds(duration));
}

}  // namespace

void SetUpLog::Add(SetUpPhase phase, absl::Time begin, absl::Time end) {
  std::lock_guard lock(mutex_);
  Tally& tally = tallies_[static_cast<size_t>(phase)];
  ++tally.count;
  tally.sum += end - begin;
  tally.longest = std::max(tally.longest, end - begin);
  first_ = std::min(first_, begin);
}

void SetUpLog::AddConnection(absl::Time begin, absl::Time now) {
  std::lock_guard lock(mutex_);
  ++connections_;
  first_ = std::min(first_, begin);
  last_ = std::max(last_, now);
  pending_.store(true, std::memory_order_relaxed);
}

std::string SetUpLog::TakeLine(absl::Time now, bool final) {
  if (!pending_.load(std::memory_order_relaxed)) return {};
  std::lock_guard lock(mutex_);
  if (connections_ == 0 || (!final && now - said_ < kBetweenLines)) return {};
  std::string line = absl::StrFormat("%d ends of connections set up within %s:", connections_,
                                     Milliseconds(last_ - first_));
  const char* separator = " ";
  for (size_t i = 0; i < tallies_.size(); ++i) {
    const Tally& tally = tallies_[i];
    if (tally.count == 0) continue;
    absl::StrAppend(&line, std::exchange(separator, ", "), kNames[i], " ", tally.count, " x ",
                    Milliseconds(tally.sum / tally.count), " (longest ",
                    Milliseconds(tally.longest), ")");
  }
  tallies_ = {};
  connections_ = 0;
  first_ = absl::InfiniteFuture();
  last_ = absl::InfinitePast();
  said_ = now;
  pending_.store(false, std::memory_order_relaxed);
  return line;
}

}  // namespace weft::nccl
