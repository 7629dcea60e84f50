#include "tools/topo/hash_search.h"

#include <algorithm>
#include <atomic>
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

constexpr uint32_t kChunk = 1 << 22;  // seeds that a rank tries at a time
constexpr int64_t kChunks = (int64_t{1} << 32) / kChunk;
constexpr int64_t kAttempts = 3;  // at all seeds, each by other flows
constexpr int64_t kPolicyOneChunks = 4;
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr absl::Duration kSearchersMeet = absl::Minutes(5);

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

absl::StatusOr<std::map<NodeId, topology::SwitchHash>> HashSearch::Run(absl::Time deadline) {
  // The key is there before anybody looks.
  WEFT_RETURN_IF_ERROR(job_.store().Append(job_.Key("found"), "\n"));
  {
    SiliconFits silicon(OwnShare(), wrong_);
    WEFT_RETURN_IF_ERROR(SearchUntil(deadline, silicon));
  }
  WEFT_RETURN_IF_ERROR(
      job_.store().Barrier(job_.Key("searched"), job_.rank(), job_.ranks(), kSearchersMeet));
  WEFT_RETURN_IF_ERROR(ReadFound());
  return found_;
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
  while (clock.Now() < deadline) {
    // In this order: what is done has been taken then.
    const bool is_fitted = silicon.done();
    for (const auto& [number, hash] : silicon.TakeFound()) {
      WEFT_RETURN_IF_ERROR(TellFound(number, hash));
    }
    WEFT_RETURN_IF_ERROR(ReadFound());
    if (found_.size() == wanted_.size()) break;
    if (any_chunk) {
      WEFT_ASSIGN_OR_RETURN(const int64_t last, job_.store().Add(job_.Key("chunk"), threads));
      any_chunk = last - threads < kAttempts * kChunks;
      if (any_chunk) WEFT_RETURN_IF_ERROR(Search(last - threads, threads));
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
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        job_.store().Get(job_.Key("found"), absl::Seconds(10)));
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
    if (found_.count(wanted_[i]) > 0) continue;
    const topology::SwitchChoices& one = switches_.at(wanted_[i]);
    routers.push_back({one.seen, static_cast<uint32_t>(one.members.size())});
    left_.push_back(i);
  }
  return searches_
      .try_emplace(attempt,
                   topology::LinuxSeedSearch(std::move(routers), static_cast<int>(attempt)))
      .first->second;
}

absl::Status HashSearch::Search(int64_t first, int64_t count) {
  std::vector<std::vector<topology::LinuxSeedSearch::Found>> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t chunk = first + i;
    const topology::LinuxSeedSearch& search = SearchOf(chunk / kChunks);
    auto& result = results[static_cast<size_t>(i)];
    threads.emplace_back([this, chunk, &search, &result] {
      const auto begin = static_cast<uint32_t>(chunk % kChunks * kChunk);
      for (int policy : {3, 1}) {
        // Policy 1 is tried for seeds that people set.
        if (policy == 1 && chunk >= kPolicyOneChunks) continue;
        auto found = search.SearchAll(begin, kChunk, policy, wrong_);
        result.insert(result.end(), found.begin(), found.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    for (const topology::LinuxSeedSearch::Found& one : result) {
      WEFT_RETURN_IF_ERROR(TellFound(left_[one.router], one.hash));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::topo
