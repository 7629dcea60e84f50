#include "collectives/c10d/group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/c10d/store.h"
#include "collectives/group_settings.h"
#include "collectives/join.h"

namespace weft::collectives {
namespace {

constexpr char kPgOptions[] = "weft.torch.Options";

// Settings of a group of `parent`'s, whose endpoint it shares.
absl::StatusOr<BackendSettings> SettingsOfSubgroup(const WeftBackend& parent,
                                                   const GroupOptions& options) {
  const std::shared_ptr<Endpoint> endpoint = parent.endpoint();
  if (endpoint == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", parent.name(), "\" was shut down"));
  }
  const Settings& shared = endpoint->settings();
  Settings own = shared;
  for (const std::string& pair : options.own_settings) {
    WEFT_RETURN_IF_ERROR(own.SetPair(pair, kPgOptions));
    const std::string name = pair.substr(0, pair.find('='));
    if (GroupSettings::Has(name) || own.ValueText(name) == shared.ValueText(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "group \"", options.name, "\": ", kPgOptions, " set ", pair, ", but ", name,
        " belongs to the default group, whose connections this one shares and which has \"",
        shared.ValueText(name), "\": give it to init_process_group(). Of its own a group may have ",
        GroupSettings::Names()));
  }
  WEFT_ASSIGN_OR_RETURN(const BackendSettings settings, BackendSettings::From(own));
  return settings.WithTimeout(options.timeout);
}

// The key that counts a rank's meetings with the others of a group of this name at its store. The
// lower half of the value counts all meetings, those that the rank has missed among them; the upper
// half is the number of the last meeting that it has missed. So the next meeting has the same
// number on all ranks, whether or not each rank has come to those before.
std::string JoinedKey(int rank) { return absl::StrCat("weft/joined_by_", rank); }

constexpr int64_t kMissed = int64_t{1} << 32;

// The error of a meeting whose time has run out, with the ranks that have missed it, for which it
// is counted.
absl::Status GiveUpAbsent(Store& store, const GroupOptions& options, int64_t attempt,
                          const absl::Status& late) {
  constexpr size_t kNamed = 8;
  constexpr absl::Duration kPatience = absl::Seconds(2);
  const SystemClock clock;
  const absl::Time start = clock.Now();
  std::vector<int> absent;
  for (int rank = 0; rank < options.size && clock.Now() - start < kPatience; ++rank) {
    const absl::StatusOr<int64_t> counted = store.Add(JoinedKey(rank), 0);
    if (!counted.ok()) break;
    const bool is_counted = *counted % kMissed >= attempt;  // by it, or by another that misses it
    if (is_counted && *counted / kMissed != attempt) continue;
    absent.push_back(rank);
    if (is_counted) continue;
    // Not every store of PyTorch's has this.
    store
        .CompareSet(JoinedKey(rank), absl::StrCat(*counted),
                    absl::StrCat(attempt + attempt * kMissed))
        .IgnoreError();
  }
  if (absent.empty()) return late;
  const size_t named = std::min(absent.size(), kNamed);
  const std::string names = absl::StrJoin(absent.begin(), absent.begin() + named, ", ");
  const std::string more =
      absent.size() > named ? absl::StrCat(" and ", absent.size() - named, " more") : "";
  return absl::DeadlineExceededError(
      absl::StrCat(absent.size() == 1 ? "rank " : "ranks ", names, more, " of ", options.size,
                   absent.size() == 1 ? " has" : " have", " not come to group \"", options.name,
                   "\" within ", absl::FormatDuration(options.settings.Duration("store.timeout"))));
}

absl::StatusOr<std::shared_ptr<Endpoint>> MakeEndpoint(const GroupOptions& options) {
  JoinOptions join;
  join.settings = options.settings;
  auto store = std::make_shared<C10dStoreAdapter>(options.store, /*borrows=*/true);
  join.store = store;
  join.environment.emplace();
  join.environment->rank = Rank(options.rank);
  join.environment->world_size = options.size;
  // A store may outlive groups that met there before, under the same name.
  WEFT_ASSIGN_OR_RETURN(int64_t attempt, join.store->Add(JoinedKey(options.rank), 1));
  attempt %= kMissed;
  join.environment->job = absl::StrCat("weft/", attempt);
  join.wants_report = Logs(LogLevel::kDebug);
  absl::StatusOr<Job> joined = JoinJob(std::move(join));
  if (absl::IsDeadlineExceeded(joined.status())) {
    return GiveUpAbsent(*store, options, attempt, joined.status());
  }
  WEFT_ASSIGN_OR_RETURN(Job job, std::move(joined));
  store->ReturnStore();
  if (!job.report.empty()) WEFT_LOG_DEBUG(job.report);
  return job.endpoint;
}

}  // namespace

absl::StatusOr<c10::intrusive_ptr<WeftBackend>> JoinGroup(GroupOptions options) {
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of a group of ", options.size));
  }
  WEFT_RETURN_IF_ERROR(FollowTimeout(options.settings, options.timeout));
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Endpoint> endpoint, MakeEndpoint(options));
  std::vector<Rank> everybody;
  for (int rank = 0; rank < options.size; ++rank) everybody.push_back(Rank(rank));
  WEFT_ASSIGN_OR_RETURN(
      auto group, WeftBackend::Create(std::move(endpoint), options.name, std::move(everybody)));
  group->setTimeout(options.timeout);
  return group;
}

void BackendRegistry::Add(const c10::intrusive_ptr<WeftBackend>& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.emplace_back(group);
}

std::vector<c10::intrusive_ptr<WeftBackend>> BackendRegistry::All() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<c10::intrusive_ptr<WeftBackend>> groups;
  for (const auto& weak : groups_) {
    auto group = weak.lock();
    if (group != nullptr) groups.push_back(std::move(group));
  }
  return groups;
}

absl::StatusOr<c10::intrusive_ptr<WeftBackend>> ProcessGroups::Make(GroupOptions options) {
  for (const auto& known : registry_->All()) {
    if (known->inherited_by_fork()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "this process was forked from one that had joined group \"", known->name(),
          "\": threads and sockets of that are not its own. Fork before init_process_group(), or "
          "start workers with spawn or forkserver"));
    }
  }
  // They go after the lock: a group ends with its last reference (work.h).
  c10::intrusive_ptr<WeftBackend> first, parent = std::move(options.default_group), group;
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_default = options.global_ranks.empty();
  first = default_group_.lock();
  if (parent == nullptr) parent = first;
  if (is_default || parent == nullptr || parent->endpoint() == nullptr) {
    for (const std::string& pair : options.own_settings) {
      WEFT_RETURN_IF_ERROR(options.settings.SetPair(pair, kPgOptions));
    }
    WEFT_ASSIGN_OR_RETURN(group, JoinGroup(std::move(options)));
    if (is_default) default_group_ = group;
  } else {
    // PyTorch begins to count groups anew where it replaces the default group; the endpoint's names
    // go on.
    const std::string name =
        parent == first ? options.name : absl::StrCat(parent->name(), "/", options.name);
    WEFT_ASSIGN_OR_RETURN(BackendSettings settings, SettingsOfSubgroup(*parent, options));
    WEFT_ASSIGN_OR_RETURN(group, parent->Subgroup(name, options.global_ranks, std::move(settings)));
    group->setTimeout(options.timeout);
  }
  WeftBackend::Register(group, registry_);
  return group;
}

std::vector<c10::intrusive_ptr<WeftBackend>> ProcessGroups::Alive() {
  std::vector<c10::intrusive_ptr<WeftBackend>> alive = registry_->All();
  std::erase_if(alive, [](const auto& group) {
    return group->inherited_by_fork() || group->endpoint() == nullptr;
  });
  return alive;
}

void ProcessGroups::ShutDownAll() {
  for (const auto& group : Alive()) group->shutdown();
}

}  // namespace weft::collectives
