#include "tools/driver/side_tasks.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tools/command_line.h"
#include "tools/driver/self_test.h"

namespace weft::driver {
namespace {

// Beyond a self-test's own limit.
constexpr absl::Duration kTestSlack = absl::Seconds(5);
constexpr size_t kDigestMost = 200;  // characters

// The name of a job that runs beside `job`, for one of its tests: the whole suffix, and of the
// job's name what there is room for.
std::string JobBeside(const std::string& job, const std::string& suffix) {
  return absl::StrCat(job.substr(0, kJobNameBytesMax - suffix.size()), suffix);
}

}  // namespace

bool SideTasks::Take() {
  if (clock_.Now() >= kill_at_) host_.KillAside();
  if (const std::unique_ptr<run::RankProcess> ended = host_.TakeAside(); ended != nullptr) {
    kill_at_ = absl::InfiniteFuture();
    const std::vector<std::string> lines = ended->output->LastLines();
    if (kind_ == Kind::kReplay) EndReplayPart(*ended);
    if (kind_ == Kind::kTest) {
      EndTest(ended->status == 0, lines.empty() ? ended->Outcome() : lines.back());
    }
  }
  return std::exchange(has_news_, false);
}

void SideTasks::Report(HostReport& report) const {
  report.test = tested_;
  report.passed = passed_;
  report.test_text = test_text_;
  report.replay = replayed_;
  if (replayed_ != 0) report.digests = digests_;
  report.replay_text = replay_text_;
}

// ---- Self-test

void SideTasks::BeginTest(const Order& order, const run::Variables& variables) {
  test_ = order.test;
  host_.KillAside();
  kind_ = Kind::kTest;
  const std::string limit = absl::FormatDuration(options_.self_test.limit);
  host_.Say(absl::StrCat("testing this host (at most ", limit, ")"));
  std::error_code error;
  std::vector<std::string> command = {
      std::filesystem::read_symlink("/proc/self/exe", error).string(), "--self-test",
      "--test-limit", limit};
  for (const std::string& test : options_.self_test.commands) {
    command.push_back("--test");
    command.push_back(test);
  }
  command.push_back("--test-helpers");
  command.push_back(absl::StrCat(order.helper));
  const absl::Status started = host_.StartAside(command, PairVariables(variables, order.test, 0));
  if (!started.ok()) return EndTest(false, std::string(started.message()));
  kill_at_ = clock_.Now() + options_.self_test.limit + kTestSlack;
}

// The environment of one process of a pair. One runs on the suspected host, the other one on a
// helper, and they meet in the job's store under a name of their own.
run::Variables SideTasks::PairVariables(run::Variables variables, int64_t test, int rank) const {
  variables["WEFT_JOB_ID"] = JobBeside(options_.run.job, absl::StrCat(".test-", test));
  variables["WEFT_STORE"] = options_.run.store;  // a relay serves the ranks' job alone
  variables["RANK"] = variables["GROUP_RANK"] = absl::StrCat(rank);
  variables["WORLD_SIZE"] = "2";
  variables["LOCAL_RANK"] = "0";
  variables["LOCAL_WORLD_SIZE"] = "1";
  variables.erase("WEFT_RECOVER");
  return variables;
}

void SideTasks::Help(const Order& order, const run::Variables& variables) {
  if (host_.runs_aside()) return;
  const absl::Status started = host_.StartAside(PairCommand(order.helper, options_.self_test.limit),
                                                PairVariables(variables, order.test, 1));
  if (!started.ok()) return host_.Say(absl::StrCat("help with a test: ", started.message()));
  kind_ = Kind::kHelp;
  kill_at_ = clock_.Now() + options_.self_test.limit + kTestSlack;
}

void SideTasks::EndTest(bool passed, std::string text) {
  kill_at_ = absl::InfiniteFuture();
  host_.Say(absl::StrCat("self-test ", passed ? "passed: " : "failed: ", text));
  tested_ = test_;
  passed_ = passed;
  test_text_ = std::move(text);
  has_news_ = true;
}

// ---- Replay

void SideTasks::BeginReplay(const Order& order) {
  replay_ = order.test;
  host_.KillAside();
  parts_ = order.parts;
  digests_.clear();
  replayed_ = 0;
  replay_text_.clear();
  StartReplayPart();
}

// As weft-run would start the ranks of this host in a job of the group's hosts.
void SideTasks::StartReplayPart() {
  const ReplayPart& part = parts_[digests_.size()];
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const run::RunOptions& run = options_.run;
  std::vector<std::string> command = {
      self.parent_path() / "weft-run",
      "--ranks",
      absl::StrCat(run.ranks),
      "--nnodes",
      absl::StrCat(part.size),
      "--node-rank",
      absl::StrCat(part.index),
      "--master-addr",
      part.master,
      "--master-port",
      absl::StrCat(run.master_port),
      "--store",
      run.store,
      "--job",
      JobBeside(run.job, absl::StrCat(".replay-", replay_, ".", part.group)),
      "--no-prefix"};
  for (const std::string& setting : run.settings) {
    command.push_back("--set");
    command.push_back(setting);
  }
  command.push_back("--");
  if (options_.replay.empty()) {
    command.insert(command.end(), run.command.begin(), run.command.end());
    command.push_back("--replay");
  } else {
    command.insert(command.end(), {"/bin/sh", "-c", options_.replay});
  }
  host_.Say(absl::StrCat("replaying a step in group ", part.group, " as host ", part.index, " of ",
                         part.size, " (at most ", absl::FormatDuration(options_.replay_limit),
                         ")"));
  kind_ = Kind::kReplay;
  kill_at_ = clock_.Now() + options_.replay_limit;
  const absl::Status started = host_.StartAside(command, run::ProcessVariables());
  if (started.ok()) return;
  kill_at_ = absl::InfiniteFuture();
  EndReplayPart("", std::string(started.message()));
}

void SideTasks::EndReplayPart(const run::RankProcess& process) {
  constexpr absl::string_view kResult = "replay: ";
  const std::vector<std::string> lines = process.output->LastLines();
  for (auto line = lines.rbegin(); process.status == 0 && line != lines.rend(); ++line) {
    absl::string_view digest = *line;
    if (!absl::ConsumePrefix(&digest, kResult) || digest.empty()) continue;
    return EndReplayPart(std::string(digest), "");
  }
  EndReplayPart("", process.status == 0 ? "it wrote no line 'replay: DIGEST'"
                    : lines.empty()     ? process.Outcome()
                                        : lines.back());
}

// An empty digest: it failed.
void SideTasks::EndReplayPart(const std::string& digest, const std::string& problem) {
  host_.Say(digest.empty() ? absl::StrCat("the replay failed: ", problem)
                           : absl::StrCat("replayed: ", digest));
  replay_text_ = problem;
  digests_.push_back(digest.substr(0, kDigestMost));
  if (digests_.size() < parts_.size()) return StartReplayPart();
  replayed_ = replay_;
  has_news_ = true;
}

}  // namespace weft::driver
