#include "collectives/recovery.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr char kEpochKey[] = "recovery/epoch";
constexpr char kReady[] = "ready";
constexpr char kOverKey[] = "recovery/over";
// How long a guard's call watches the epoch before the guard calls again.
constexpr absl::Duration kWatchPatience = absl::Minutes(1);
// For the value of a key that is there.
constexpr absl::Duration kReadPatience = absl::Seconds(10);

std::string ArrivalKey(int64_t epoch, int rank) {
  return absl::StrCat("recovery/", epoch, "/", rank);
}

// What an arrival adds to the count of an epoch: one, and where this rank has not all that it had
// before, one in the upper half.
constexpr int64_t kHasNothing = int64_t{1} << 32;

}  // namespace

// "7 5 6 1,3 ready": epoch 7, of base 5, after epoch 6, since which ranks 1 and 3 were replaced.
struct Recovery::State {
  int64_t epoch = 0, base = 0, before = 0;
  std::vector<int> replaced;
  bool ready = false;

  std::string ToText() const {
    return absl::StrCat(epoch, " ", base, " ", before, " ", absl::StrJoin(replaced, ","),
                        ready ? " " : "", ready ? kReady : "");
  }
};

// Any client of the store may have written the text: ranks out of range are refused here, before
// they index anything.
absl::StatusOr<Recovery::State> Recovery::ParseState(absl::string_view text, int ranks) {
  State state;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  state.ready = words.size() == 5 && words[4] == kReady;
  bool is_right = (words.size() == 4 || state.ready) && absl::SimpleAtoi(words[0], &state.epoch) &&
                  absl::SimpleAtoi(words[1], &state.base) &&
                  absl::SimpleAtoi(words[2], &state.before);
  if (is_right) {
    for (const absl::string_view word : absl::StrSplit(words[3], ',')) {
      int& rank = state.replaced.emplace_back();
      is_right = is_right && absl::SimpleAtoi(word, &rank) && rank >= 0 && rank < ranks;
    }
  }
  if (is_right) return state;
  return absl::DataLossError(absl::StrCat("key ", kEpochKey, " of the store holds '", text,
                                          "', which is no epoch of ", ranks, " ranks"));
}

JoinGuard::JoinGuard(StoreClient* store, int64_t epoch, int ranks)
    : store_(store), epoch_(epoch), ranks_(ranks), thread_([this] { Watch(); }) {}

JoinGuard::~JoinGuard() {
  store_->RefuseWaits(StoreWaits::kWatches, absl::CancelledError("the join is over"));
  thread_.join();
  for (const StoreWaits which : {StoreWaits::kWatches, StoreWaits::kOthers}) {
    store_->RefuseWaits(which, absl::OkStatus());
  }
}

void JoinGuard::Watch() {
  int64_t version = 0;
  while (true) {
    const auto watched = store_->Watch(kEpochKey, version, kWatchPatience);
    if (absl::IsDeadlineExceeded(watched.status())) continue;
    if (!watched.ok()) return;  // the join is over, or its own calls see that the store is gone
    version = watched->version;
    if (!watched->value.has_value()) continue;
    const absl::StatusOr<Recovery::State> state = Recovery::ParseState(*watched->value, ranks_);
    if (!state.ok()) return;
    if (state->epoch <= epoch_) continue;
    store_->RefuseWaits(StoreWaits::kOthers,
                        absl::UnavailableError(absl::StrCat(
                            "a rank died while all joined, and was started anew (epoch ",
                            state->epoch, " after ", epoch_, ")")));
    return;
  }
}

std::unique_ptr<JoinGuard> Recovery::GuardJoin() const {
  auto* client = dynamic_cast<StoreClient*>(store_);
  if (!enabled_ || client == nullptr) return nullptr;
  return std::make_unique<JoinGuard>(client, epoch_, ranks_);
}

Recovery::Recovery(Store* store, const JobEnvironment& environment)
    : store_(store),
      rank_(environment.rank.value()),
      ranks_(environment.world_size),
      generation_(environment.generation),
      enabled_(environment.recover && environment.world_size > 1),
      last_end_(ParseProcessEnd(environment.last_end)) {}

bool Recovery::Helps(const absl::Status& status, int rank) {
  const Failure failure = FailureOf(status);
  const bool is_other = failure.rank >= 0 && failure.rank != rank;
  switch (failure.scope) {
    case FailureScope::kProcess:
    case FailureScope::kConnection:
      return is_other || absl::IsUnavailable(status);
    case FailureScope::kDevice:
      return is_other;
    case FailureScope::kUnknown:
    case FailureScope::kRequest:
    case FailureScope::kPath:
      break;
  }
  return absl::IsUnavailable(status) || absl::IsCancelled(status);
}

absl::Status Recovery::Begin() {
  // The present epoch is read before: the process that this one replaces may have arrived at it,
  // but at none that begins from now on, by whichever rank that is started anew.
  std::string text;
  WEFT_ASSIGN_OR_RETURN(const bool is_there, store_->Check({kEpochKey}));
  if (is_there) {
    WEFT_ASSIGN_OR_RETURN(text, store_->Get(kEpochKey, kReadPatience));
  }
  while (true) {
    State next{.epoch = 1};
    if (!text.empty()) {
      WEFT_ASSIGN_OR_RETURN(const State now, ParseState(text, ranks_));
      next = {.epoch = now.epoch + 1, .base = now.base, .before = now.before};
      if (now.ready) next.before = now.epoch;
      if (!now.ready) next.replaced = now.replaced;
    }
    next.replaced.push_back(rank_);
    std::sort(next.replaced.begin(), next.replaced.end());
    next.replaced.erase(std::unique(next.replaced.begin(), next.replaced.end()),
                        next.replaced.end());
    const std::string wanted = next.ToText();
    WEFT_ASSIGN_OR_RETURN(std::string held, store_->CompareSet(kEpochKey, text, wanted));
    if (held == wanted) return absl::OkStatus();
    text = std::move(held);
  }
}

bool Recovery::HasAllElse(const State& state, const LetGo& let_go) const {
  if (joined_ < 0) {
    // A new process has nothing to have kept, and joins those that are left. Where all ranks were
    // replaced, none is left, and the base may never have been joined.
    return static_cast<int>(state.replaced.size()) < ranks_ &&
           std::binary_search(state.replaced.begin(), state.replaced.end(), rank_);
  }
  if (joined_ != state.before || !let_go) return false;
  const absl::Status status = let_go(state.replaced);
  if (!status.ok()) WEFT_LOG_INFO("all ranks join anew: ", status.message());
  return status.ok();
}

absl::Status Recovery::Arrive(const State& state, const LetGo& let_go) {
  arrived_ = state.epoch;
  const bool has_all = HasAllElse(state, let_go);
  WEFT_RETURN_IF_ERROR(store_->Set(ArrivalKey(state.epoch, rank_), "here"));
  WEFT_ASSIGN_OR_RETURN(const int64_t count,
                        store_->Add(absl::StrCat("recovery/", state.epoch, "/arrived"),
                                    has_all ? 1 : 1 + kHasNothing));
  if (count % kHasNothing != ranks_) return absl::OkStatus();
  State ready = state;
  ready.ready = true;
  if (count / kHasNothing > 0) ready.base = state.epoch;
  // Nothing where a newer epoch has begun.
  return store_->CompareSet(kEpochKey, state.ToText(), ready.ToText()).status();
}

absl::Status Recovery::SetOver() { return enabled_ ? store_->Set(kOverKey, "") : absl::OkStatus(); }

absl::StatusOr<bool> Recovery::IsOver() const {
  if (!enabled_ || !replaced()) return false;
  return IsOver(*store_);
}

absl::StatusOr<bool> Recovery::IsOver(Store& store) { return store.Check({kOverKey}); }

absl::StatusOr<bool> Recovery::HaveMet(Store& store, const std::vector<int>& some, int ranks) {
  WEFT_ASSIGN_OR_RETURN(const bool any_epoch, store.Check({kEpochKey}));
  if (!any_epoch) return false;
  WEFT_ASSIGN_OR_RETURN(const std::string text, store.Get(kEpochKey, kReadPatience));
  const absl::StatusOr<State> state = ParseState(text, ranks);
  if (!state.ok()) return true;  // of a job of more ranks
  for (const int rank : some) {
    if (std::binary_search(state->replaced.begin(), state->replaced.end(), rank)) return true;
    WEFT_ASSIGN_OR_RETURN(const bool arrived, store.Check({ArrivalKey(state->epoch, rank)}));
    if (arrived) return true;
  }
  return false;
}

absl::StatusOr<int64_t> Recovery::First(absl::Duration timeout) {
  if (!enabled_ || !replaced()) return 0;
  WEFT_RETURN_IF_ERROR(Begin());
  return Next(timeout);
}

absl::StatusOr<int64_t> Recovery::Next(absl::Duration timeout, const LetGo& let_go) {
  const SystemClock clock;
  const absl::Time deadline = clock.Now() + timeout;
  int64_t version = 0, awaited = 0;
  while (true) {
    const auto watched = store_->Watch(kEpochKey, version, deadline - clock.Now());
    if (!watched.ok()) return Overdue(watched.status(), awaited);
    version = watched->version;
    if (!watched->value.has_value()) continue;
    WEFT_ASSIGN_OR_RETURN(const State state, ParseState(*watched->value, ranks_));
    if (state.epoch <= epoch_) continue;
    awaited = state.epoch;
    if (state.ready && state.epoch == arrived_) {
      base_ = state.base;
      replaced_ = state.replaced;
      return epoch_ = state.epoch;
    }
    if (state.epoch > arrived_) WEFT_RETURN_IF_ERROR(Arrive(state, let_go));
  }
}

absl::Status Recovery::Overdue(const absl::Status& status, int64_t awaited) const {
  if (!absl::IsDeadlineExceeded(status)) return Annotate(status, "wait for a rank started anew");
  if (awaited == 0) {
    return absl::DeadlineExceededError("no rank was started anew in place of the one that is gone");
  }
  std::vector<int> all;
  std::vector<std::string> keys;
  for (int rank = 0; rank < ranks_; ++rank) {
    all.push_back(rank);
    keys.push_back(ArrivalKey(awaited, rank));
  }
  return NameMissing(*store_, status, "wait for all ranks to meet again", all, keys);
}

absl::Status Recovery::GoOnFrom(int64_t step) {
  if (!enabled_ || !replaced()) return absl::OkStatus();
  const std::string key = absl::StrCat("recovery/rank/", rank_);
  WEFT_ASSIGN_OR_RETURN(const bool known, store_->Check({key}));
  if (known) {
    WEFT_ASSIGN_OR_RETURN(const std::string before, store_->Get(key, kReadPatience));
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(before, absl::MaxSplits(' ', 1));
    if (parts.first == absl::StrCat(step) &&
        IsSameFault(ParseProcessEnd(parts.second), last_end_, rank_)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank_, " ended twice in the step after step ", step, " for the same cause (it ",
          ToText(last_end_), "): starting it again does not help"));
    }
  }
  return store_->Set(key, absl::StrCat(step, " ", ToText(last_end_)));
}

}  // namespace weft::collectives
