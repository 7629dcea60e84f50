#include "collectives/rendezvous/store.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {

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
  for (int other : wanted.ranks()) keys.push_back(ExchangedKey(key, other));
  return MultiGet(keys, timeout);
}

}  // namespace weft::collectives
