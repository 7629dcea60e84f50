#include "collectives/store/store.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace weft::collectives {

namespace {

// Names of missing ranks that a message holds.
constexpr size_t kNamedRanks = 8;

}  // namespace

std::string ExchangedKey(absl::string_view key, int rank) { return absl::StrCat(key, "/", rank); }

absl::StatusOr<std::vector<std::string>> Store::Exchange(absl::string_view key, int rank, int size,
                                                         absl::string_view value,
                                                         const RankSet& wanted,
                                                         absl::Duration timeout) {
  std::string what = absl::StrCat("exchange '", key, "'");
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": rank ", rank, " of ", size, " does not exist"));
  }
  WEFT_RETURN_IF_ERROR(Annotate(RankSet::Decode(wanted.Encode(), size).status(), what));
  WEFT_RETURN_IF_ERROR(Set(ExchangedKey(key, rank), value));
  std::vector<std::string> keys;
  keys.reserve(wanted.size());
  const std::vector<int> others = wanted.ranks();
  for (int other : others) keys.push_back(ExchangedKey(key, other));
  auto values = MultiGet(keys, timeout);
  if (!values.ok()) return NameMissing(*this, values.status(), what, others, keys);
  return values;
}

absl::StatusOr<std::vector<std::string>> Store::Gather(absl::string_view key, int rank, int size,
                                                       int root, absl::string_view value,
                                                       absl::Duration timeout) {
  if (root < 0 || root >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather '", key, "': root ", root, " of ", size, " does not exist"));
  }
  const RankSet wanted = rank == root ? RankSet::Below(size) : RankSet();
  return Store::Exchange(key, rank, size, value, wanted, timeout);
}

absl::Status NameMissing(Store& store, const absl::Status& status, absl::string_view what,
                         const std::vector<int>& ranks, const std::vector<std::string>& keys) {
  if (!absl::IsDeadlineExceeded(status)) return Annotate(status, what);
  std::vector<std::string> missing;
  for (size_t i = 0; i < keys.size() && missing.size() <= kNamedRanks; ++i) {
    absl::StatusOr<bool> there = store.Check({keys[i]});
    if (there.ok() && !*there) missing.push_back(absl::StrCat(ranks[i]));
  }
  const bool more = missing.size() > kNamedRanks;
  if (more) missing.pop_back();
  return absl::DeadlineExceededError(absl::StrCat(
      what, ": the time ran out; missing of ", keys.size(),
      " ranks: ", missing.empty() ? "none" : absl::StrJoin(missing, ", "), more ? " ..." : ""));
}

}  // namespace weft::collectives
