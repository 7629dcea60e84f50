// A job of NCCL for tests: a process a rank, which NCCL takes for hosts of their own, and in each
// all-reduce, all-gather, reduce-scatter, broadcast, and send and receive of several lengths over
// the network plugin, with every value checked. NCCL and the CUDA runtime are loaded at run time.
#ifndef WEFT_TESTS_PLUGINS_GPU_NCCL_JOB_H_
#define WEFT_TESTS_PLUGINS_GPU_NCCL_JOB_H_

#include <string>
#include <utility>
#include <vector>

namespace weft {

// libnccl.so.2: WEFT_TEST_NCCL names it where neither the loader nor CUDA's folder has it. Null:
// there is none.
void* LoadNccl();
// libcudart.so: WEFT_TEST_CUDART, or the loader's. With `scripted`, the runtime of the scripted
// GPU.
void* LoadCuda(bool scripted);
int NcclVersion(void* nccl);  // 22809 is 2.28.9

struct NcclJob {
  int ranks = 2;
  bool scripted_gpu = false;
  // Floats of a rank. None: the communicator starts and ends.
  std::vector<size_t> counts = {1, 1000, 1 << 20};
  int rounds = 1;      // how often all is done
  int lives = 1;       // how often the communicator is made, does all its rounds, and ends
  int dies_after = 0;  // rounds, the last rank, by a signal; 0: it does not
  // Calls all collectives for `counts`, as floats of the whole buffer, and ends: no kernel runs,
  // and what NCCL has chosen stands in the log.
  bool only_chooses = false;
  // Beside what every job has, and before that.
  std::vector<std::pair<std::string, std::string>> environment;
};

// The exit status of a rank whose communicator NCCL has reported to be broken.
inline constexpr int kReportedBroken = 3;

struct NcclRankEnd {
  bool succeeded = false;
  std::string status;  // in words
  std::string log;     // NCCL's, at level INFO
};

// Runs a job to its end; the ranks are this program again: main() is in nccl_job.cc. A rank that
// takes longer than `limit_seconds` is killed.
std::vector<NcclRankEnd> RunNcclJob(const NcclJob& job, unsigned limit_seconds = 90);

}  // namespace weft

#endif  // WEFT_TESTS_PLUGINS_GPU_NCCL_JOB_H_
