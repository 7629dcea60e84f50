// What a group has done so far, by kind of call. Thread-safe.
#ifndef WEFT_COLLECTIVES_C10D_STATISTICS_H_
#define WEFT_COLLECTIVES_C10D_STATISTICS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace weft::collectives {

class Statistics {
 public:
  struct Row {
    uint64_t calls = 0;     // that have ended, well or not
    uint64_t failures = 0;  // of those
    uint64_t bytes = 0;     // of this rank's tensors: the inputs, of a receive the output
    int64_t busy_ns = 0;    // from call to completion, added up
  };
  // `title`: a literal, "all_reduce".
  void Count(const char* title, uint64_t bytes, int64_t busy_ns, bool failed) {
    std::lock_guard<std::mutex> lock(mutex_);
    Row& row = rows_[title];
    ++row.calls;
    row.failures += failed ? 1 : 0;
    row.bytes += bytes;
    row.busy_ns += busy_ns;
  }
  std::map<std::string, Row> rows() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return rows_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Row> rows_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_STATISTICS_H_
