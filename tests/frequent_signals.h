// Signals as those of a profiler's timer, for tests that no system call ends early because of them.
#ifndef WEFT_TESTS_FREQUENT_SIGNALS_H_
#define WEFT_TESTS_FREQUENT_SIGNALS_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

namespace weft {

// SIGALRM every 100 us, with a handler that does nothing, for as long as this object lives.
class FrequentSignals {
 public:
  FrequentSignals() {
    struct sigaction handler {};
    handler.sa_handler = [](int) {};
    EXPECT_EQ(sigaction(SIGALRM, &handler, &before_), 0);
    const itimerval often{{0, 100}, {0, 100}};
    EXPECT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  }
  ~FrequentSignals() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }
  FrequentSignals(const FrequentSignals&) = delete;
  FrequentSignals& operator=(const FrequentSignals&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace weft

#endif  // WEFT_TESTS_FREQUENT_SIGNALS_H_
