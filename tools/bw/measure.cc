#include "tools/bw/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::bw {
namespace {

using collectives::Communicator;
using collectives::WorkPtr;

constexpr int kIterationsMin = 2;
constexpr int kIterationsMax = 2000;
constexpr int kCalibrationIterations = 3;

absl::Status WaitAll(std::vector<WorkPtr>& works) {
  absl::Status status;
  for (const WorkPtr& work : works) status.Update(work->Wait());
  works.clear();
  return status;
}

// What one group runs.
struct GroupCase {
  Case what;
  GroupRun group;
};

std::vector<GroupCase> RunsOf(const Case& what, absl::Span<const GroupRun> groups, int ranks) {
  const Bytes size = SizeOf(what, ranks);
  std::vector<GroupCase> out;
  for (const GroupRun& group : groups) {
    GroupCase run{what, group};
    run.what.count = CountFor(what.operation, what.type, size, group.communicator->size());
    out.push_back(run);
  }
  return out;
}

void StartAll(absl::Span<const GroupCase> runs, std::vector<WorkPtr>& works) {
  for (const GroupCase& run : runs)
    run.group.buffers->Start(run.what, *run.group.communicator, works);
}

// Starts and finishes operations one after the other, `in_flight` at a time.
class Loop {
 public:
  Loop(absl::Span<const GroupCase> runs, int in_flight, Communicator& world)
      : runs_(runs), in_flight_(in_flight), world_(world) {}

  // Nanoseconds of all; of each in `single`, where it is given.
  absl::StatusOr<int64_t> Run(int iterations, std::vector<int64_t>* single) {
    WEFT_RETURN_IF_ERROR(world_.Barrier()->Wait());
    WEFT_RETURN_IF_ERROR(world_.Barrier()->Wait());
    const int64_t start = SystemClock::Nanoseconds();
    for (int i = 0; i < iterations; ++i) {
      if (static_cast<int>(flying_.size()) >= in_flight_) WEFT_RETURN_IF_ERROR(Land(single));
      std::vector<WorkPtr> works = std::move(spare_);
      int64_t begin = single == nullptr ? 0 : SystemClock::Nanoseconds();
      StartAll(runs_, works);
      last_ = works.back();
      flying_.push_back({begin, std::move(works)});
    }
    while (!flying_.empty()) WEFT_RETURN_IF_ERROR(Land(single));
    return SystemClock::Nanoseconds() - start;
  }
  const WorkPtr& last() const { return last_; }

 private:
  absl::Status Land(std::vector<int64_t>* single) {
    auto [begin, works] = std::move(flying_.front());
    flying_.pop_front();
    WEFT_RETURN_IF_ERROR(WaitAll(works));
    if (single != nullptr) single->push_back(SystemClock::Nanoseconds() - begin);
    spare_ = std::move(works);
    return absl::OkStatus();
  }

  const absl::Span<const GroupCase> runs_;
  const int in_flight_;
  Communicator& world_;
  std::deque<std::pair<int64_t, std::vector<WorkPtr>>> flying_;
  std::vector<WorkPtr> spare_;  // keeps its memory
  WorkPtr last_;
};

double OverRanks(const std::vector<std::vector<double>>& values, size_t index, Average average) {
  double sum = 0, low = values[0][index], high = values[0][index];
  for (const std::vector<double>& row : values) {
    sum += row[index];
    low = std::min(low, row[index]);
    high = std::max(high, row[index]);
  }
  switch (average) {
    case Average::kRankZero:
      return values[0][index];
    case Average::kMean:
      return sum / static_cast<double>(values.size());
    case Average::kMin:
      return low;
    case Average::kMax:
      return high;
  }
  return high;
}

absl::StatusOr<int64_t> CheckOnce(absl::Span<const GroupCase> runs, Control& control) {
  for (const GroupCase& run : runs) {
    run.group.buffers->Fill(run.what, run.group.communicator->rank().value(),
                            run.group.communicator->size());
  }
  std::vector<WorkPtr> works;
  StartAll(runs, works);
  WEFT_RETURN_IF_ERROR(WaitAll(works));
  double wrong = 0;
  for (const GroupCase& run : runs) {
    wrong += static_cast<double>(run.group.buffers->Wrong(
        run.what, run.group.communicator->rank().value(), run.group.communicator->size()));
  }
  WEFT_ASSIGN_OR_RETURN(auto all, control.Exchange({wrong}));
  return std::llround(OverRanks(all, 0, Average::kMean) * control.ranks());
}

absl::StatusOr<int> ChooseIterations(const Options& options, Loop& loop, Control& control) {
  if (options.repeat_time <= absl::ZeroDuration()) return options.iterations;
  WEFT_ASSIGN_OR_RETURN(int64_t nanoseconds, loop.Run(kCalibrationIterations, nullptr));
  WEFT_ASSIGN_OR_RETURN(auto all, control.Exchange({static_cast<double>(nanoseconds)}));
  double one = std::max(OverRanks(all, 0, Average::kMax) / kCalibrationIterations, 1.0);
  double wanted = absl::ToDoubleNanoseconds(options.repeat_time) / one;
  return static_cast<int>(std::clamp<double>(wanted, kIterationsMin, kIterationsMax));
}

absl::Status AddIterationStats(std::vector<int64_t> single, Control& control, Result& result) {
  std::sort(single.begin(), single.end());
  auto at = [&](size_t percent) {
    return static_cast<double>(single[std::min(single.size() * percent / 100, single.size() - 1)]) /
           1e3;
  };
  WEFT_ASSIGN_OR_RETURN(auto all, control.Exchange({at(0), at(50), at(99), at(100)}));
  result.i_min_us = OverRanks(all, 0, Average::kMax);
  result.i_p50_us = OverRanks(all, 1, Average::kMax);
  result.i_p99_us = OverRanks(all, 2, Average::kMax);
  result.i_max_us = OverRanks(all, 3, Average::kMax);
  return absl::OkStatus();
}

// One way of running a case, as all ranks time it together.
class Way {
 public:
  Way(std::vector<GroupCase> runs, const Options& options, Communicator& world, Control& control)
      : runs_(std::move(runs)),
        options_(options),
        control_(control),
        loop_(runs_, options.in_flight, world) {}
  Way(const Way&) = delete;  // the loop refers to the runs

  absl::Status Prepare(Result& result) {
    result.measured = true;
    if (options_.check && runs_[0].what.operation != Operation::kBarrier) {
      WEFT_ASSIGN_OR_RETURN(result.wrong, CheckOnce(runs_, control_));
    }
    if (options_.warmup > 0) WEFT_RETURN_IF_ERROR(loop_.Run(options_.warmup, nullptr).status());
    WEFT_ASSIGN_OR_RETURN(result.iterations, ChooseIterations(options_, loop_, control_));
    return absl::OkStatus();
  }
  absl::Status Repeat(const Result& result) {
    WEFT_ASSIGN_OR_RETURN(
        int64_t nanoseconds,
        loop_.Run(result.iterations, options_.iteration_stats ? &single_ : nullptr));
    mine_.push_back(static_cast<double>(nanoseconds) / 1e3 / result.iterations);
    return absl::OkStatus();
  }
  absl::Status Finish(Result& result) {
    result.algorithm = loop_.last()->algorithm();
    result.why = loop_.last()->why();
    WEFT_ASSIGN_OR_RETURN(auto all, control_.Exchange(mine_));
    for (size_t i = 0; i < mine_.size(); ++i) {
      result.repeats_us.push_back(OverRanks(all, i, options_.average));
    }
    std::sort(result.repeats_us.begin(), result.repeats_us.end());
    if (!options_.iteration_stats) return absl::OkStatus();
    return AddIterationStats(std::move(single_), control_, result);
  }

 private:
  const std::vector<GroupCase> runs_;
  const Options& options_;
  Control& control_;
  Loop loop_;
  std::vector<double> mine_;     // of this rank, a repeat each, in us
  std::vector<int64_t> single_;  // of single operations, in ns
};

}  // namespace

absl::StatusOr<std::vector<std::vector<double>>> Control::Exchange(
    const std::vector<double>& mine) {
  std::string bytes(mine.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  WEFT_ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      store_.AllGather(absl::StrCat("weft-bw/", turn_++), rank_, ranks_, bytes, absl::Minutes(5)));
  std::vector<std::vector<double>> values;
  for (const std::string& text : all) {
    if (text.size() != bytes.size()) {
      return absl::FailedPreconditionError("the ranks of weft-bw were started differently");
    }
    std::vector<double> row(mine.size());
    std::memcpy(row.data(), text.data(), text.size());
    values.push_back(std::move(row));
  }
  return values;
}

absl::StatusOr<std::vector<Result>> Measure(const Case& what, const Options& options,
                                            absl::Span<const std::vector<GroupRun>> ways,
                                            Communicator& world, Control& control) {
  std::vector<Result> results(ways.size());
  if (what.in_place && !InfoOf(what.operation).in_place) return results;
  std::deque<Way> measured;
  for (size_t i = 0; i < ways.size(); ++i) {
    measured.emplace_back(RunsOf(what, ways[i], control.ranks()), options, world, control);
    WEFT_RETURN_IF_ERROR(measured.back().Prepare(results[i]));
  }
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t i = 0; i < ways.size(); ++i) WEFT_RETURN_IF_ERROR(measured[i].Repeat(results[i]));
  }
  for (size_t i = 0; i < ways.size(); ++i) WEFT_RETURN_IF_ERROR(measured[i].Finish(results[i]));
  return results;
}

}  // namespace weft::bw
