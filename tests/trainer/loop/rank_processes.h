// The processes of a run's ranks, for tests that kill one at its work.
#ifndef WEFT_TESTS_TRAINER_LOOP_RANK_PROCESSES_H_
#define WEFT_TESTS_TRAINER_LOOP_RANK_PROCESSES_H_

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {

inline std::string Words(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class RankProcessesTest : public TrainRunTest {
 protected:
  // Processes of that run: every one names the run's folder.
  static std::vector<pid_t> ProcessesOf(const std::string& run) {
    std::vector<pid_t> pids;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      if (pid <= 0) continue;
      std::string words = Words(entry.path() / "cmdline");
      words += '\0';
      if (words.find(RunDir(run) + '\0') != std::string::npos) pids.push_back(pid);
    }
    return pids;
  }
  // The process of a rank: 0 while there is none.
  static pid_t ProcessOf(const std::string& run, int rank) {
    for (pid_t pid : ProcessesOf(run)) {
      const fs::path folder = "/proc/" + std::to_string(pid);
      std::string variables = '\0' + Words(folder / "environ");
      const bool is_rank =
          variables.find('\0' + ("RANK=" + std::to_string(rank)) + '\0') != std::string::npos;
      std::error_code error;
      const fs::path program = fs::read_symlink(folder / "exe", error);
      if (is_rank && program.filename() == "weft-train") return pid;
    }
    return 0;
  }

  // Kills the process of a rank, and returns it; returns 0 where there is none. kill(0, SIGKILL)
  // would end this test, and whatever shares its process group.
  static pid_t KillRank(const std::string& run, int rank) {
    const pid_t pid = ProcessOf(run, rank);
    if (pid > 0) kill(pid, SIGKILL);
    return pid;
  }

  static int LastStep(const std::string& run) {
    int last = 0;
    std::ifstream file(RunDir(run) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (row.is_object() && row.contains("loss")) last = std::max(last, row["step"].get<int>());
    }
    return last;
  }

  // Waits until `run` has done `step` steps; false: it ended before.
  static bool WaitForStep(const std::string& run, int step, Process& process) {
    for (int i = 0; i < 12000 && process.running(); ++i) {
      if (LastStep(run) >= step) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
};

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_LOOP_RANK_PROCESSES_H_
