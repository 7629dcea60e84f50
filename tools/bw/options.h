// What weft-bw is asked to do. Names and defaults follow nccl-tests where it has them.
#ifndef WEFT_TOOLS_BW_OPTIONS_H_
#define WEFT_TOOLS_BW_OPTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
#include "base/units.h"
#include "collectives/data_type.h"
#include "tools/bw/operation.h"
#include "topology/job/mesh.h"

namespace weft::bw {

enum class Average { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };  // over ranks

// Sizes that are measured at most: more would be a slip, as --stepbytes 1 for --stepfactor 2.
inline constexpr size_t kSizesMost = 100'000;

struct Options {
  std::vector<Operation> operations{Operation::kAllReduce};
  std::vector<collectives::DataType> types{collectives::DataType::kFloat32};
  std::vector<collectives::ReduceOp> reductions{collectives::ReduceOp::kSum};
  int root = 0;
  Bytes size_min = MiB(32);
  Bytes size_max = MiB(32);
  Bytes step = MiB(1);
  double factor = 0;  // above 1: sizes grow by it, and not by `step`
  int iterations = 20;
  absl::Duration repeat_time = absl::ZeroDuration();  // above 0: chooses `iterations` for each size
  int warmup = 1;
  int repeats = 1;
  int in_flight = 1;  // operations started before the oldest is waited for
  Average average = Average::kMean;
  bool check = true;
  bool out_of_place = true;
  bool in_place = true;
  bool shared_buffers = true;  // from Endpoint::Allocate()
  bool iteration_stats = false;
  bool show_schedule = false;
  bool compare = false;  // every algorithm in turn, beside the choice
  bool calibrate = false;
  bool force = false;  // writes what a busy machine's calibration gave
  bool json = false;
  int ranks = 0;  // above 0: start them
  // Runs the operation at once in this rank's group along each axis; none: in one group of all.
  std::optional<topology::Mesh> groups;
  Settings settings{LibrarySettings()};

  // From `size_min` to `size_max`; one above kSizesMost of them where there are more.
  std::vector<Bytes> Sizes() const;
};

// As a sorted-out command line, or the exit status of a program that is done (help, wrong usage).
struct Parsed {
  Options options;
  int exit_status = -1;  // -1: go on
};
Parsed ParseCommandLine(int argc, char** argv);

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_OPTIONS_H_
