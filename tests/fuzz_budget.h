// How long a fuzz test goes on: a fixed number of seeded inputs, and with WEFT_FUZZ_SECONDS=600 for
// so long at least. WEFT_FUZZ_SEED is the first input's seed, so that a finding can be repeated.
#ifndef WEFT_TESTS_FUZZ_BUDGET_H_
#define WEFT_TESTS_FUZZ_BUDGET_H_

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace weft {

class FuzzBudget {
 public:
  explicit FuzzBudget(uint64_t inputs) : inputs_(inputs) {}

  // The seed of the next input; nothing: that was enough.
  std::optional<uint64_t> Next() {
    if (tried_ >= inputs_ && (seconds_ == 0 || Elapsed() >= absl::Seconds(seconds_))) return {};
    return first_ + tried_++;
  }
  // What repeats the input that Next() gave last.
  std::string Repeat() const {
    return absl::StrCat("WEFT_FUZZ_SEED=", first_ + tried_ - 1, " repeats it");
  }
  // Once it is over; says nothing where the number was the usual one.
  void Report() const {
    if (seconds_ == 0) return;
    std::printf("%s", absl::StrCat(tried_, " inputs, ",
                                   static_cast<double>(tried_) / absl::ToDoubleSeconds(Elapsed()),
                                   " a second, ", MemoryKiB() / 1024, " MiB\n")
                          .c_str());
  }
  static int64_t MemoryKiB() {  // the most that this process had
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  }

 private:
  static uint64_t NumberFrom(const char* variable, uint64_t standard) {
    const char* text = std::getenv(variable);
    uint64_t value = standard;
    if (text != nullptr) {
      EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << variable;
    }
    return value;
  }
  absl::Duration Elapsed() const { return clock_.Now() - begin_; }

  SystemClock clock_;
  const absl::Time begin_ = clock_.Now();
  const uint64_t inputs_;
  const uint64_t seconds_ = NumberFrom("WEFT_FUZZ_SECONDS", 0);
  const uint64_t first_ = NumberFrom("WEFT_FUZZ_SEED", 1);
  uint64_t tried_ = 0;
};

}  // namespace weft

#endif  // WEFT_TESTS_FUZZ_BUDGET_H_
