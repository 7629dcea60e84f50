// What a run tells its user before its first step: settings, layout, kernels, and where it goes on
// from. On standard error; rank 0 prints.
#ifndef WEFT_TRAINER_LOOP_RUN_START_H_
#define WEFT_TRAINER_LOOP_RUN_START_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "trainer/config.h"
#include "trainer/kernel_choice/kernel_choice.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/shared_read.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

struct RunStart {
  std::string run_dir;
  const TrainConfig& config;
  bool wants_packed = false;  // train.pack_weights, before there was no memory for it
  const StepPlan& plan;
  int ranks = 1, threads = 1;
  at::Device device = at::kCPU;
  const KernelChoice& gemm;
  const KernelChoice& attention;
  std::vector<std::string> datasets;  // DescribeDatasets
  double peak_flops = 0;
  std::string bound_threads;  // ComputeThreads::description; empty: there are none
  std::string cores;          // DescribeCores; empty: nothing was chosen by them
  Bytes packed;               // of weights packed once a step
  bool resume = false;        // was asked for
  bool resumed = false;       // from the checkpoint `loaded_from`, after `step`; `read` of it
  int64_t step = 0;
  std::string loaded_from;
  ReadTotals read;
};

void PrintStart(const RunStart& start, Progress& progress);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RUN_START_H_
