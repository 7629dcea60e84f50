// Timing of several ways to compute the same: they take turns until it is clear which is fastest.
#ifndef WEFT_TRAINER_KERNEL_CHOICE_COMPETITION_H_
#define WEFT_TRAINER_KERNEL_CHOICE_COMPETITION_H_

#include <functional>
#include <limits>
#include <vector>

namespace weft::train {

// Seconds on the clock that runs are timed by: the CPU time of the calling thread where LibTorch
// computes on one thread, which leaves out what other programs took; else wall time.
double TimingSeconds();
// Seconds of wall time, from an arbitrary beginning.
double WallSeconds();

// The fewest rounds of turns where there is time.
inline constexpr int kRoundsFewest = 3;

// One of the ways, and how long it takes.
struct Contender {
  std::function<void()> run;
  double extra = 0;                                       // seconds that `run` does not include
  double best = std::numeric_limits<double>::infinity();  // the shortest run, in seconds
  double next = std::numeric_limits<double>::infinity();  // the second shortest
  double seconds() const { return best + extra; }
};

// When rounds end, in WallSeconds.
struct Deadlines {
  double own = 0;  // behind kRoundsFewest rounds there is none after this
  double all = 0;  // behind the first round there is none after this
};

// Sets `best` and `next` of each. Runs each twice beforehand, then rounds in which each has a turn,
// kRoundsFewest to 30: until `deadlines`, or until no two of them are close and no fast one's two
// shortest times are far apart.
void Compete(std::vector<Contender>& contenders, const Deadlines& deadlines);

}  // namespace weft::train

#endif  // WEFT_TRAINER_KERNEL_CHOICE_COMPETITION_H_
