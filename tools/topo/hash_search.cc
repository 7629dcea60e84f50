#include "tools/topo/hash_search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "topology/ecmp/hash_text.h"
#include "topology/host/affinity.h"

namespace weft::topo {
namespace {

constexpr uint32_t kChunk = 1 << 21;  // seeds that a thread tries at a time
constexpr int64_t kChunks = (int64_t{1} << 32) / kChunk;
constexpr int64_t kAttempts = 2;  // at all seeds, each by other flows
constexpr int64_t kPolicyOneChunks = 8;
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr absl::Duration kAskEvery = absl::Milliseconds(250);
constexpr std::chrono::seconds kBeatEvery(1);
constexpr absl::Duration kBeginMost = absl::Seconds(30);
constexpr absl::Duration kStoreMost = absl::Seconds(10);  // of one answer of the store
constexpr char kOutOfTime = 't', kDone = 'd', kSearching = 's';

}  // namespace

// Fits the hashes of switch silicon to what some switches did, beside the search for seeds.
class HashSearch::SiliconFits {
 public:
  SiliconFits(std::vector<SiliconTask> all, double wrong)
      : all_(std::move(all)), wrong_(wrong), thread_([this] { Run(); }) {}
  ~SiliconFits() {
    ends_ = true;
    thread_.join();
  }
  SiliconFits(const SiliconFits&) = delete;
  SiliconFits& operator=(const SiliconFits&) = delete;

  // Number of the switch and hash, each once.
  std::vector<std::pair<size_t, topology::SwitchHash>> TakeFound() {
    std::lock_guard lock(mutex_);
    return std::exchange(found_, {});
  }
  bool done() const { return done_; }

 private:
  void Run() {
    std::vector<topology::SwitchHash> before;
    for (const SiliconTask& one : all_) {
      if (ends_) break;
      auto fitted = topology::FitSilicon(static_cast<uint32_t>(one.choices->members.size()),
                                         one.choices->seen, before, wrong_, &ends_);
      if (!fitted.has_value()) continue;
      before.push_back(fitted->hash);
      std::lock_guard lock(mutex_);
      found_.emplace_back(one.number, fitted->hash);
    }
    done_ = true;
  }

  const std::vector<SiliconTask> all_;
  const double wrong_;
  std::atomic<bool> ends_ = false, done_ = false;
  std::mutex mutex_;
  std::vector<std::pair<size_t, topology::SwitchHash>> found_;
  std::thread thread_;  // the last, as it uses all others
};

absl::StatusOr<FoundHashes> HashSearch::Run(absl::Time deadline) {
  // The keys are there before anybody looks.
  WEFT_RETURN_IF_ERROR(job_.store().Append(job_.Key("found"), "\n"));
  WEFT_RETURN_IF_ERROR(Beat());
  WEFT_RETURN_IF_ERROR(
      job_.store().Barrier(job_.Key("begins"), job_.rank(), job_.ranks(), kBeginMost));
  const absl::Time now = SystemClock().Now();
  for (int rank = 0; rank < job_.ranks(); ++rank) waiting_[rank] = {"", now};
  {
    SiliconFits silicon(OwnShare(), wrong_);
    WEFT_RETURN_IF_ERROR(SearchUntil(deadline, silicon));
  }
  WEFT_RETURN_IF_ERROR(Conclude());
  WEFT_RETURN_IF_ERROR(ReadFound());
  FoundHashes out;
  out.hashes = found_;
  out.in_time = in_time_;
  WEFT_ASSIGN_OR_RETURN(const int64_t tried, job_.store().Add(job_.Key("tried"), 0));
  out.tried_share = std::min(1.0, static_cast<double>(tried) / static_cast<double>(kChunks));
  return out;
}

bool HashSearch::WantsSeeds() const {
  return std::any_of(wanted_.begin(), wanted_.end(), [&](NodeId node) {
    return found_.count(node) == 0 && linear_.count(node) == 0;
  });
}

std::string HashSearch::BeatKey(int rank) const {
  return job_.Key(absl::StrCat("searches/", rank));
}

absl::Status HashSearch::Beat() {
  return job_.store().Set(BeatKey(job_.rank()), absl::StrCat(std::string(1, kSearching), beats_++));
}

// A rank whose word stays the same is dead. Whoever finds one tells all.
absl::Status HashSearch::CheckBeats() {
  const absl::Time now = SystemClock().Now();
  if (now < next_check_) return absl::OkStatus();
  next_check_ = now + kAskEvery;
  WEFT_ASSIGN_OR_RETURN(const bool any_dead, job_.store().Check({job_.Key("dead")}));
  if (any_dead) {
    WEFT_ASSIGN_OR_RETURN(const std::string text, job_.store().Get(job_.Key("dead"), kStoreMost));
    return absl::DeadlineExceededError(text);
  }
  std::vector<std::string> keys;
  for (const auto& [rank, _] : waiting_) keys.push_back(BeatKey(rank));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                        job_.store().MultiGet(keys, kStoreMost));
  size_t i = 0;
  for (auto one = waiting_.begin(); one != waiting_.end(); ++i) {
    Heard& heard = one->second;
    if (words[i][0] != kSearching) {
      in_time_ = in_time_ && words[i][0] == kDone;
      one = waiting_.erase(one);
      continue;
    }
    if (words[i] != heard.word) heard = {words[i], now};
    if (now - heard.since > kSilentMost) {
      const std::string text = absl::StrCat(
          job_.NameOf(one->first), " has not been heard of for ", absl::FormatDuration(kSilentMost),
          " in the search for hashes: it was killed, or its host is lost");
      WEFT_RETURN_IF_ERROR(job_.store().Set(job_.Key("dead"), text));
      return absl::DeadlineExceededError(text);
    }
    ++one;
  }
  return absl::OkStatus();
}

// Waits until every rank has ended its search.
absl::Status HashSearch::Conclude() {
  WEFT_RETURN_IF_ERROR(
      job_.store().Set(BeatKey(job_.rank()), std::string(1, in_time_ ? kDone : kOutOfTime)));
  while (true) {
    WEFT_RETURN_IF_ERROR(CheckBeats());
    if (waiting_.empty()) return absl::OkStatus();
    absl::SleepFor(kAskEvery);
  }
}

std::vector<HashSearch::SiliconTask> HashSearch::OwnShare() const {
  std::vector<SiliconTask> own;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (static_cast<int>(i % job_.hosts().size()) != job_.own()) continue;
    own.push_back({i, &switches_.at(wanted_[i])});
  }
  return own;
}

absl::Status HashSearch::SearchUntil(absl::Time deadline, SiliconFits& silicon) {
  const auto threads =
      static_cast<int64_t>(std::max(1, AllowedCores() / std::max(1, job_.ranks_here())));
  SystemClock clock;
  bool any_chunk = true;
  while (true) {
    WEFT_RETURN_IF_ERROR(Beat());
    // The first rank looks after all others, which look whether it has found one dead.
    if (job_.rank() == 0) {
      WEFT_RETURN_IF_ERROR(CheckBeats());
    } else {
      WEFT_ASSIGN_OR_RETURN(const bool any_dead, job_.store().Check({job_.Key("dead")}));
      if (any_dead) return CheckBeats();
    }
    // In this order: what is done has been taken then.
    const bool is_fitted = silicon.done();
    for (const auto& [number, hash] : silicon.TakeFound()) {
      WEFT_RETURN_IF_ERROR(TellFound(number, hash));
    }
    WEFT_RETURN_IF_ERROR(ReadFound());
    if (found_.size() == wanted_.size()) break;
    if (clock.Now() >= deadline) {
      in_time_ = false;
      break;
    }
    if (any_chunk && WantsSeeds()) {
      WEFT_ASSIGN_OR_RETURN(const int64_t last, job_.store().Add(job_.Key("chunk"), threads));
      const int64_t first = last - threads, count = std::min(threads, kAttempts * kChunks - first);
      any_chunk = count > 0;
      if (!any_chunk) continue;
      WEFT_RETURN_IF_ERROR(Search(first, count));
      WEFT_RETURN_IF_ERROR(job_.store().Add(job_.Key("tried"), count).status());
    } else if (is_fitted) {
      break;
    } else {
      absl::SleepFor(kLookEvery);
    }
  }
  return absl::OkStatus();
}

absl::Status HashSearch::TellFound(size_t number, const topology::SwitchHash& hash) {
  return job_.store().Append(job_.Key("found"),
                             absl::StrCat(number, " ", topology::HashText(hash.options()), "\n"));
}

// A line a switch: its number and its hash.
absl::Status HashSearch::ReadFound() {
  WEFT_ASSIGN_OR_RETURN(const std::string text, job_.store().Get(job_.Key("found"), kStoreMost));
  if (text == found_text_) return absl::OkStatus();
  found_text_ = text;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> words = absl::StrSplit(line, ' ');
    size_t number = 0;
    if (!absl::SimpleAtoi(words.first, &number) || number >= wanted_.size()) {
      return absl::DataLossError(absl::StrCat("\"", line, "\" is no seed of a switch"));
    }
    WEFT_ASSIGN_OR_RETURN(topology::SwitchHash hash, topology::ParseHash(words.second));
    found_.try_emplace(wanted_[number], hash);
  }
  searches_.clear();
  return absl::OkStatus();
}

// By the flows of switches that are not found yet.
const topology::LinuxSeedSearch& HashSearch::SearchOf(int64_t attempt) {
  auto known = searches_.find(attempt);
  if (known != searches_.end()) return known->second;
  std::vector<topology::LinuxRouter> routers;
  left_.clear();
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (found_.count(wanted_[i]) > 0 || linear_.count(wanted_[i]) > 0) continue;
    const topology::SwitchChoices& one = switches_.at(wanted_[i]);
    routers.push_back({one.seen, static_cast<uint32_t>(one.members.size())});
    left_.push_back(i);
  }
  return searches_
      .try_emplace(attempt,
                   topology::LinuxSeedSearch(std::move(routers), static_cast<int>(attempt)))
      .first->second;
}

// On a busy host a chunk may take longer than a rank may be silent.
absl::Status HashSearch::Search(int64_t first, int64_t count) {
  std::vector<std::future<std::vector<topology::LinuxSeedSearch::Found>>> results;
  for (int64_t chunk = first; chunk < first + count; ++chunk) {
    const topology::LinuxSeedSearch& search = SearchOf(chunk / kChunks);
    results.push_back(std::async(std::launch::async, [this, chunk, &search] {
      std::vector<topology::LinuxSeedSearch::Found> result;
      const auto begin = static_cast<uint32_t>(chunk % kChunks * kChunk);
      for (int policy : {3, 1}) {
        // Policy 1 is tried for seeds that people set.
        if (policy == 1 && chunk >= kPolicyOneChunks) continue;
        auto found = search.SearchAll(begin, kChunk, policy, wrong_);
        result.insert(result.end(), found.begin(), found.end());
      }
      return result;
    }));
  }
  for (auto& result : results) {
    while (result.wait_for(kBeatEvery) != std::future_status::ready) {
      WEFT_RETURN_IF_ERROR(Beat());
    }
    for (const topology::LinuxSeedSearch::Found& one : result.get()) {
      WEFT_RETURN_IF_ERROR(TellFound(left_[one.router], one.hash));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::topo
