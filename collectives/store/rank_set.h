// A set of ranks, as runs of neighbours: whose values a participant of an exchange wants (store.h).
// A host's ranks are one run, and so are everybody's.
//
// Encoded: each run's first rank and number of ranks as u32, little endian; runs ascend and do not
// touch, so that a set has one encoding, of at most 4 bytes a rank of the whole. Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_RANK_SET_H_
#define WEFT_COLLECTIVES_STORE_RANK_SET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::collectives {

class RankSet {
 public:
  struct Run {
    int32_t first = 0;
    int32_t count = 0;
    int32_t end() const { return first + count; }
    friend bool operator==(const Run&, const Run&) = default;
  };

  RankSet() = default;
  explicit RankSet(const std::vector<int>& ranks);  // in any order, also several times
  static RankSet Below(int32_t size);               // 0 to size - 1

  void Add(const RankSet& other);

  const std::vector<Run>& runs() const { return runs_; }  // ascending
  size_t size() const;
  std::vector<int> ranks() const;  // ascending
  // Where each of its ranks stands among those of `all`, ascending. Nothing: one is not there.
  std::optional<std::vector<size_t>> PlacesIn(const RankSet& all) const;
  friend bool operator==(const RankSet&, const RankSet&) = default;

  std::string Encode() const;
  // kInvalidArgument: these bytes are no set of ranks below `size`.
  static absl::StatusOr<RankSet> Decode(absl::string_view bytes, int32_t size);

 private:
  std::vector<Run> runs_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_RANK_SET_H_
