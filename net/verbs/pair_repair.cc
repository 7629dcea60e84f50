// How queue pairs of a link are replaced: what the two ends say to each other of them.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/pair_paths.h"
#include "net/verbs/process_stall.h"

namespace weft::net::multipath {
namespace {

// Packets on a path that was left, without a word of any, before the other end is asked.
constexpr uint32_t kProbesMin = 4;
// Between two looks while a queue pair is missing; a look that is much later follows a stall.
constexpr absl::Duration kLookEvery = absl::Milliseconds(250);

}  // namespace

// What a side says of a queue pair once the link stands, likewise. The address of a new one;
// without: queue pair 0.
struct PairPaths::Word {
  uint16_t path = 0;
  uint8_t is_ready = 0;  // it receives
  uint8_t asks = 0;      // nothing gets through: does any of it come?
  uint32_t generation = 0;
  PairAddress address;
  static_assert(sizeof(PairAddress) == kAddressPairBytes &&
                std::endian::native == std::endian::little);
};

std::string PairPaths::Repair(const PathSet& known) {
  LookForSilentPaths(known);
  std::string words;
  for (size_t i = 0; i < usable_; ++i) {
    Path& path = paths_[i];
    if (path.state == State::kLost && path.renew_at <= port_.now_) Renew(i, path.generation + 1);
    if (!path.says_address && !path.says_ready && !path.asks) continue;
    Word word;
    word.path = static_cast<uint16_t>(i);
    word.generation = path.generation;
    word.is_ready = path.says_ready ? 1 : 0;
    word.asks = path.asks ? 1 : 0;
    if (path.says_address) word.address = AddressOf(path);
    path.says_address = path.says_ready = path.asks = false;
    words.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  if (status_.ok()) LookForSilence();
  return words;
}

absl::Status PairPaths::OnRepair(absl::string_view words) {
  if (words.empty() || words.size() % sizeof(Word) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("words on queue pairs of ", words.size(), " bytes"));
  }
  for (; !words.empty(); words.remove_prefix(sizeof(Word))) {
    Word word;
    std::memcpy(&word, words.data(), sizeof word);
    if (word.path >= usable_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a word on queue pair ", word.path, " of ", usable_));
    }
    WEFT_RETURN_IF_ERROR(TakeWord(word));
  }
  return absl::OkStatus();
}

void PairPaths::Renew(size_t index, uint32_t generation) {
  Path& path = paths_[index];
  Drop(path);
  path.generation = generation;
  path.says_address = true;
  absl::Status made = Make(index);
  if (!made.ok()) Lose(index, std::string(made.message()));
}

absl::Status PairPaths::TakeWord(const Word& word) {
  const size_t index = word.path;
  Path& path = paths_[index];
  // The peer has lost its own.
  if (static_cast<int32_t>(word.generation - path.generation) > 0) Renew(index, word.generation);
  if (word.generation != path.generation) return absl::OkStatus();
  if (word.asks != 0) AnswerForSilentPath(index);
  if (word.address.queue_pair != 0 && path.state == State::kMade) {
    WEFT_RETURN_IF_ERROR(ConnectTo(word.address, index));
  }
  if (word.is_ready == 0) return absl::OkStatus();
  path.peer_is_ready = path.state == State::kConnecting;
  if (path.state == State::kConnected) BecomeReady(index);
  return absl::OkStatus();
}

void PairPaths::BecomeReady(size_t index) {
  Path& path = paths_[index];
  path.state = State::kReady;
  path.heard_at = port_.now_;
  owner_.OnWritable();
  if (path.generation == 0) return;
  ++port_.statistics_.pairs_replaced;
  WEFT_LOG_INFO("multipath: queue pair ", index, " of ", usable_, " to ", peer_text_,
                " is replaced");
}

// ---- Silent paths

void PairPaths::OnHeard(PathId path) {
  if (path < paths_.size()) paths_[path].heard_at = port_.now_;
}

void PairPaths::LookForSilentPaths(const PathSet& known) {
  const absl::Duration patience = port_.rails().options().stall_after;
  const Path* silent = nullptr;
  for (size_t i = 0; i < usable_; ++i) {
    Path& path = paths_[i];
    // When all are silent it is the peer that is, or this end.
    const bool is_left = known.live() > 0 && !known.IsLive(static_cast<PathId>(i));
    if (!is_left || path.state != State::kReady) {
      path.left_at = absl::InfiniteFuture();
    } else if (path.left_at == absl::InfiniteFuture()) {
      path.left_at = port_.now_;
      path.left_next = path.next;
    } else if (port_.now_ - path.left_at >= patience &&
               ((path.next - path.left_next) & RailQueuePair::kNumberMask) >= kProbesMin &&
               (silent == nullptr || path.asked_at < silent->asked_at)) {
      silent = &path;
    }
  }
  const Path& asked = paths_[asked_];
  const bool is_settled = port_.now_ - asked.asked_at >= patience ||
                          (asked.generation != asked_generation_ && asked.state == State::kReady);
  if (silent == nullptr || !is_settled) return;
  asked_ = static_cast<size_t>(silent - paths_.data());
  asked_generation_ = silent->generation;
  paths_[asked_].asked_at = port_.now_;
  paths_[asked_].asks = true;
}

// Half of the time for which the other end had nothing of it: clocks differ, and so do turns.
void PairPaths::AnswerForSilentPath(size_t index) {
  const absl::Duration silence = heard_at_ - paths_[index].heard_at;
  if (paths_[index].state != State::kReady) return;
  if (silence < port_.rails().options().stall_after / 2) return;
  Lose(index, absl::StrCat("nothing has come over it for ", absl::FormatDuration(silence),
                           " while it did over others, as both ends say"));
}

void PairPaths::LookForSilence() {
  const auto missing =
      std::count_if(paths_.begin(), paths_.begin() + static_cast<std::ptrdiff_t>(usable_),
                    [](const Path& path) { return path.state != State::kReady; });
  if (missing == 0) {
    missing_since_ = look_due_ = absl::InfiniteFuture();
    return;
  }
  missing_since_ = std::min(missing_since_, port_.now_) + StallTime(look_due_, port_.now_);
  const absl::Duration patience = port_.rails().options().give_up_after;
  look_due_ = deadline();
  if (port_.now_ < GivesUpAt()) return;
  status_ = absl::UnavailableError(absl::StrCat(
      missing, " of ", usable_, " queue pairs are lost, and nothing has come over the others for ",
      absl::FormatDuration(patience), " (verbs.give_up_after)"));
}

absl::Time PairPaths::GivesUpAt() const {
  return std::max(heard_at_, std::min(missing_since_, port_.now_)) +
         port_.rails().options().give_up_after;
}

absl::Time PairPaths::deadline() const {
  absl::Time due = absl::InfiniteFuture();
  for (size_t i = 0; i < usable_; ++i) {
    const Path& path = paths_[i];
    if (path.state == State::kReady) continue;
    due = std::min({due, GivesUpAt(), port_.now_ + kLookEvery});
    if (path.state == State::kLost) due = std::min(due, path.renew_at);
  }
  return due;
}

}  // namespace weft::net::multipath
