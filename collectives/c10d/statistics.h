// What a group has done so far, by kind of call. Thread-safe.
#ifndef WEFT_COLLECTIVES_C10D_STATISTICS_H_
#define WEFT_COLLECTIVES_C10D_STATISTICS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::collectives {

class Statistics {
 public:
  struct Row {
    uint64_t calls = 0;     // that have ended, well or not
    uint64_t failures = 0;  // of those
    uint64_t bytes = 0;     // of this rank's tensors: the inputs, of a receive the output
    int64_t busy_ns = 0;    // from call to completion, added up
  };
  // `title`: a literal, "weft:all_reduce".
  void Count(const char* title, uint64_t bytes, int64_t busy_ns, bool failed) {
    std::lock_guard<std::mutex> lock(mutex_);
    Row& row = RowOf(title);
    ++row.calls;
    row.failures += failed ? 1 : 0;
    row.bytes += bytes;
    row.busy_ns += busy_ns;
  }
  std::map<std::string, Row> rows() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::map<std::string, Row> sums;
    for (const auto& [title, row] : rows_) {
      Row& sum = sums[title];
      sum.calls += row.calls;
      sum.failures += row.failures;
      sum.bytes += row.bytes;
      sum.busy_ns += row.busy_ns;
    }
    return sums;
  }

 private:
  Row& RowOf(const char* title) {
    for (auto& [known, row] : rows_) {
      if (known == title) return row;
    }
    return rows_.emplace_back(title, Row()).second;
  }

  mutable std::mutex mutex_;
  // Found by the literal's address: a dozen, and a small call would notice the comparing of texts.
  // Literals of equal text that have several addresses have a row each.
  std::vector<std::pair<const char*, Row>> rows_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_STATISTICS_H_
