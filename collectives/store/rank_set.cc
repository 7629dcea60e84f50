#include "collectives/store/rank_set.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/little_endian.h"

namespace weft::collectives {
namespace {

constexpr size_t kRunBytes = 2 * sizeof(uint32_t);

}  // namespace

RankSet::RankSet(const std::vector<int>& ranks) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  for (int rank : sorted) {
    if (!runs_.empty() && rank < runs_.back().end()) continue;
    if (!runs_.empty() && rank == runs_.back().end()) {
      ++runs_.back().count;
    } else {
      runs_.push_back({rank, 1});
    }
  }
}

RankSet RankSet::Below(int32_t size) {
  RankSet all;
  if (size > 0) all.runs_.push_back({0, size});
  return all;
}

void RankSet::Add(const RankSet& other) {
  std::vector<Run> both;
  both.reserve(runs_.size() + other.runs_.size());
  std::merge(runs_.begin(), runs_.end(), other.runs_.begin(), other.runs_.end(),
             std::back_inserter(both),
             [](const Run& a, const Run& b) { return a.first < b.first; });
  runs_.clear();
  for (const Run& run : both) {
    if (runs_.empty() || run.first > runs_.back().end()) {
      runs_.push_back(run);
    } else {
      Run& last = runs_.back();
      last.count = std::max(last.end(), run.end()) - last.first;
    }
  }
}

size_t RankSet::size() const {
  size_t sum = 0;
  for (const Run& run : runs_) sum += static_cast<size_t>(run.count);
  return sum;
}

std::vector<int> RankSet::ranks() const {
  std::vector<int> ranks;
  ranks.reserve(size());
  for (const Run& run : runs_) {
    for (int32_t rank = run.first; rank < run.end(); ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<std::vector<size_t>> RankSet::PlacesIn(const RankSet& all) const {
  std::vector<size_t> places;
  places.reserve(size());
  auto in = all.runs_.begin();
  size_t before = 0;  // ranks of the runs before that one
  for (const Run& run : runs_) {
    while (in != all.runs_.end() && in->end() <= run.first) {
      before += static_cast<size_t>(in->count);
      ++in;
    }
    // As runs do not touch, one of them holds all of `run` or none does.
    if (in == all.runs_.end() || in->first > run.first || in->end() < run.end()) {
      return std::nullopt;
    }
    for (int32_t rank = run.first; rank < run.end(); ++rank) {
      places.push_back(before + static_cast<size_t>(rank - in->first));
    }
  }
  return places;
}

std::string RankSet::Encode() const {
  std::string bytes;
  bytes.reserve(runs_.size() * kRunBytes);
  for (const Run& run : runs_) {
    PutLittle(bytes, static_cast<uint32_t>(run.first));
    PutLittle(bytes, static_cast<uint32_t>(run.count));
  }
  return bytes;
}

absl::StatusOr<RankSet> RankSet::Decode(absl::string_view bytes, int32_t size) {
  RankSet set;
  auto malformed = [&, total = bytes.size()] {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed set of ranks: ", total, " bytes, wrong in run ", set.runs_.size(),
                     "; right are runs of ranks below ", size, ", ascending and apart"));
  };
  if (bytes.size() % kRunBytes != 0) return malformed();
  set.runs_.reserve(bytes.size() / kRunBytes);
  int64_t least = 0;  // that the next run may begin with
  while (!bytes.empty()) {
    uint32_t first = 0;
    uint32_t count = 0;
    TakeLittle(bytes, &first);
    TakeLittle(bytes, &count);
    int64_t end = int64_t{first} + count;
    if (int64_t{first} < least || count == 0 || end > size) return malformed();
    set.runs_.push_back({static_cast<int32_t>(first), static_cast<int32_t>(count)});
    least = end + 1;
  }
  return set;
}

}  // namespace weft::collectives
