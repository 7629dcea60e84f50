#include "trainer/kernel_choice/competition.h"

#include <ATen/Parallel.h>
#include <time.h>

#include <algorithm>
#include <cstddef>

#include "base/clock.h"

namespace weft::train {
namespace {

constexpr int kRoundsMost = 30;

// Whether more rounds may change what is taken: two libraries are close, or the two shortest times
// of one are not.
bool IsOpen(const std::vector<Contender>& contenders) {
  constexpr double kClose = 1.1, kScattered = 1.03;
  double best = std::numeric_limits<double>::infinity();
  for (const Contender& each : contenders) best = std::min(best, each.seconds());
  bool is_close = false;
  for (const Contender& each : contenders) {
    const double over = each.seconds() / best;
    is_close = is_close || (over > 1 && over < kClose);
    if (over < kClose && each.next > kScattered * each.best) return true;
  }
  return is_close;
}

}  // namespace

double TimingSeconds() {
  timespec now = {};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double WallSeconds() { return 1e-9 * static_cast<double>(SystemClock::Nanoseconds()); }

void Compete(std::vector<Contender>& contenders, const Deadlines& deadlines) {
  constexpr double kShortest = 5e-5;  // seconds of a timed piece: many readings of the clock
  std::vector<int> repeats;
  for (Contender& each : contenders) {
    each.run();  // generates code, packs weights, touches memory
    const double begin = TimingSeconds();
    each.run();
    const double took = std::max(1e-7, TimingSeconds() - begin);
    each.best = took;
    repeats.push_back(1 + std::min(20, static_cast<int>(kShortest / took)));
  }
  for (int round = 0; round < kRoundsMost; ++round) {
    const double now = WallSeconds();
    if (round > 0 && now > deadlines.all) return;
    if (round >= kRoundsFewest && (now > deadlines.own || !IsOpen(contenders))) return;
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      // Forwards and backwards: nobody always comes behind the same one.
      const size_t at = round % 2 == 0 ? turn : contenders.size() - 1 - turn;
      Contender& each = contenders[at];
      const double begin = TimingSeconds();
      for (int i = 0; i < repeats[at]; ++i) each.run();
      const double took = std::max(1e-9, (TimingSeconds() - begin) / repeats[at]);
      each.next = std::min(each.next, std::max(each.best, took));
      each.best = std::min(each.best, took);
    }
  }
}

}  // namespace weft::train
