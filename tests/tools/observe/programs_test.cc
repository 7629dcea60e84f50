// The programs as their users run them, on jobs whose compute is emulated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/record_files.h"
#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include "tools/observe/http.h"
#include "tools/observe/process_state.h"

namespace weft::observe {
namespace {

using testing::HasSubstr;

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A job in the background, ended by its destructor; its records are in a folder of its own.
class Job {
 public:
  explicit Job(const std::string& arguments, const std::string& launcher = "") {
    const std::string bin = std::getenv("WEFT_BIN");
    const std::string command =
        absl::StrCat("exec ", bin, "/weft-run -n 3 --job under-test --set records.keep=true --set ",
                     "records.folder=", rings(), " ", launcher, " -- ", bin, "/weft-fault run ",
                     arguments, " > ", log(), " 2>&1");
    pid_ = fork();
    if (pid_ == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
  }
  ~Job() { End(SIGKILL); }
  int End(int number) {
    if (pid_ < 0) return 0;
    kill(pid_, number);
    return Wait();
  }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Bounded; until every rank has a ring, and one of them is at this step.
  bool Reaches(int64_t step) {
    for (int tries = 0; tries < 1200; ++tries) {
      const std::vector<std::string> files = RecordFilesIn(rings());
      int64_t most = -1;
      for (const std::string& file : files) {
        if (auto reader = RecordReader::Open(file); reader.ok()) {
          most = std::max(most, (*reader)->process().step);
        }
      }
      if (files.size() == 3 && most >= step) return true;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  }
  std::string rings() const { return folder_ / "rings"; }
  std::string log() const { return folder_ / "log"; }
  std::string Output() const { return Slurp(log()); }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  ScratchFolder folder_;
  pid_t pid_ = -1;
};

nlohmann::json Json(const std::string& command) {
  const Outcome outcome = RunProgram(command, "2>/dev/null");
  const nlohmann::json parsed = nlohmann::json::parse(outcome.output, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << command << ": " << outcome.output;
  return parsed;
}

// A rank that gets its core late before the fault comes is slow, too: nobody is slow here.
constexpr char kWatchForStops[] = "weft-diagnose --json --watch 60s --slow 100 --records ";

TEST(Programs, NameWhatAJobWaitsFor) {
  Job job("--fault hang-data --rank 1 --step 4 --step-time 20ms");
  ASSERT_TRUE(job.Reaches(4));
  const nlohmann::json said = Json(kWatchForStops + job.rings());
  ASSERT_EQ(said["findings"].size(), 1u) << said;
  EXPECT_EQ(said["findings"][0]["fault"], "hang outside of communication");
  EXPECT_EQ(said["findings"][0]["component"], "data");
  EXPECT_EQ(said["findings"][0]["culprits"], nlohmann::json::array({1}));
  const Outcome text = RunProgram("weft-diagnose --records " + job.rings());
  EXPECT_EQ(text.status, 3);
  EXPECT_THAT(text.output, HasSubstr("hang outside of communication: rank 1 (data)"));
  const nlohmann::json top = Json("weft-top --once --json --records " + job.rings());
  EXPECT_EQ(top["ranks"].size(), 3u);
  EXPECT_EQ(top["ranks"][1]["phase"], "data");
  EXPECT_THAT(std::string(top["ranks"][1]["mark"]), HasSubstr("hang"));
  EXPECT_THAT(RunProgram("weft-top --once --records " + job.rings()).output, HasSubstr("<< hang"));
}

TEST(Programs, SayNothingOfAHealthyJob) {
  // Steps so long that a busy host's cores, which a rank gets late, make none of them slow.
  Job job("--fault none --steps 2000 --step-time 200ms");
  ASSERT_TRUE(job.Reaches(3));
  const Outcome outcome = RunProgram("weft-diagnose --watch 1s --slow 3 --records " + job.rings());
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("nothing is wrong"));
}

// The launcher explains by itself, and the records say the same afterwards.
TEST(Programs, ExplainADeathDuringTheJobAndAfterIt) {
  Job job("--fault kill --rank 2 --step 3 --step-time 20ms");
  EXPECT_EQ(job.Wait(), 128 + SIGKILL);
  EXPECT_THAT(job.Output(), HasSubstr("weft-run: dead rank: rank 2 (process)"));
  const nlohmann::json said = Json("weft-diagnose --json --replay --records " + job.rings());
  ASSERT_EQ(said["findings"].size(), 1u) << said;
  EXPECT_EQ(said["findings"][0]["fault"], "dead rank");
  EXPECT_EQ(said["findings"][0]["culprits"], nlohmann::json::array({2}));
}

TEST(Programs, MakeFaultsFromOutsideAtAStepAndPhase) {
  Job job("--fault none --steps 5000 --step-time 20ms");
  const Outcome injected = RunProgram(
      "weft-fault inject --fault stop --rank 0 --step 5 --phase backward --records " + job.rings());
  ASSERT_EQ(injected.status, 0) << injected.output;
  const nlohmann::json onset = nlohmann::json::parse(injected.output);
  EXPECT_GE(onset["step"], 5);
  const nlohmann::json said = Json(kWatchForStops + job.rings());
  ASSERT_GE(said["findings"].size(), 1u);
  EXPECT_EQ(said["findings"][0]["fault"], "stopped rank");
  EXPECT_EQ(said["findings"][0]["culprits"], nlohmann::json::array({0}));
  kill(onset["pid"].get<pid_t>(), SIGCONT);
}

TEST(Programs, LeaveNoProcessStoppedWhoseFaultIsEndedByASignal) {
  Job job("--fault none --steps 5000 --step-time 20ms");
  ASSERT_TRUE(job.Reaches(1));
  for (const std::string fault : {"pause", "slow --severity 100"}) {
    const std::string out = job / "onset";
    const std::string command =
        absl::StrCat("exec ", std::getenv("WEFT_BIN"), "/weft-fault inject --fault ", fault,
                     " --rank 0 --for 10m --records ", job.rings(), " > ", out);
    const pid_t injector = fork();
    if (injector == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    nlohmann::json onset;
    for (int tries = 0; tries < 1200 && !onset.is_object(); ++tries) {
      absl::SleepFor(absl::Milliseconds(50));
      onset = nlohmann::json::parse(Slurp(out), nullptr, false);
    }
    ASSERT_TRUE(onset.is_object());
    const auto is_stopped = [pid = onset["pid"].get<pid_t>()] {
      return ReadProcessState(pid, ProcessStart(pid)).stopped();
    };
    bool was_stopped = false;
    for (int tries = 0; tries < 12000 && !was_stopped; ++tries) {
      was_stopped = is_stopped();
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_TRUE(was_stopped) << fault;
    kill(injector, SIGTERM);
    int status = 0;
    waitpid(injector, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << fault;
    EXPECT_FALSE(is_stopped()) << fault;
    std::filesystem::remove(out);
  }
}

TEST(Programs, TraceAJobThatHasEnded) {
  Job job("--fault none --steps 20 --step-time 10ms");
  ASSERT_EQ(job.Wait(), 0) << job.Output();
  const Outcome outcome = RunProgram(absl::StrCat(
      "weft-trace --replay --records ", job.rings(), " --html ", job / "t.html", " --perfetto ",
      job / "t.pftrace", " --chrome ", job / "t.json", " --flight-recorder ", job / "fr"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(Slurp(job / "t.html"), HasSubstr("all_reduce"));
  EXPECT_GT(Slurp(job / "t.pftrace").size(), 10000u);
  const nlohmann::json chrome = nlohmann::json::parse(Slurp(job / "t.json"));
  EXPECT_GT(chrome["traceEvents"].size(), 1000u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Slurp(absl::StrCat(job / "fr", "/rank_", rank)).substr(0, 2), "\x80\x02");
  }
}

// weft-agent in the background, on a port of the kernel's choice.
class AgentProcess {
 public:
  explicit AgentProcess(const std::string& arguments) {
    const std::string command =
        absl::StrCat("echo $$; exec ", std::getenv("WEFT_BIN"),
                     "/weft-agent --listen 127.0.0.1:0 --period 100ms ", arguments);
    pipe_ = popen(command.c_str(), "r");
    pid_ = atoi(Line().c_str());
    const std::string said = Line();  // weft-agent: http://127.0.0.1:PORT/metrics
    const size_t colon = said.rfind(':');
    if (colon == std::string::npos) return;
    port_ = said.substr(colon + 1, said.find('/', colon) - colon - 1);
  }
  ~AgentProcess() { End(); }
  int End() {
    if (pipe_ == nullptr) return 0;
    if (pid_ > 0) kill(pid_, SIGTERM);
    return pclose(std::exchange(pipe_, nullptr));
  }
  absl::StatusOr<std::string> Get(const std::string& path, const std::string& token = "") {
    return HttpFetch({"127.0.0.1", port_}, {.path = path, .token = token});
  }
  // Bounded; /metrics as soon as it has all of these: links are sampled, and rings read, by and by.
  absl::StatusOr<std::string> GetMetricsWith(const std::vector<std::string>& texts,
                                             const std::string& token = "") {
    absl::StatusOr<std::string> metrics;
    for (int tries = 0; tries < 1200; ++tries) {
      metrics = Get("/metrics", token);
      const auto has = [&](const std::string& text) {
        return metrics->find(text) != std::string::npos;
      };
      if (!metrics.ok() || std::all_of(texts.begin(), texts.end(), has)) break;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return metrics;
  }
  const std::string& port() const { return port_; }

 private:
  std::string Line() {
    char line[200] = "";
    return pipe_ != nullptr && fgets(line, sizeof(line), pipe_) != nullptr ? line : "";
  }
  FILE* pipe_ = nullptr;
  pid_t pid_ = 0;
  std::string port_;
};

TEST(Programs, ServeAHostsJobsToPrometheusAndToOtherHosts) {
  Job job("--fault none --steps 5000 --step-time 20ms");
  ASSERT_TRUE(job.Reaches(3));
  std::ofstream(job / "token") << "a token of some length\n";
  AgentProcess agent(absl::StrCat("--records ", job.rings(), " --token-file ", job / "token"));
  EXPECT_FALSE(agent.Get("/metrics").ok());
  const std::string token = "a token of some length";
  const std::string is_up = "weft_rank_up{job=\"under-test\",rank=\"2\"} 1";
  const std::string flows = "weft_flow_bytes_total{";
  auto metrics = agent.GetMetricsWith({is_up, flows}, token);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT(*metrics, HasSubstr(is_up));
  EXPECT_THAT(*metrics, HasSubstr(flows));
  EXPECT_THAT(std::string(agent.Get("/ring/../../etc/passwd", token).status().message()),
              HasSubstr("status 404"));
  const nlohmann::json top = Json(absl::StrCat(
      "weft-top --once --json --agent 127.0.0.1:", agent.port(), " --token-file ", job / "token"));
  EXPECT_EQ(top["ranks"].size(), 3u);
  EXPECT_NE(top["ranks"][0]["state"], "-");
  EXPECT_EQ(agent.End(), 0);
}

// After the first look an agent sends what is new only, and one that is silent among several is
// said and costs nothing else.
TEST(Programs, FetchWhatIsNewFromAgents) {
  Job job("--fault none --steps 5000 --step-time 200ms");
  ASSERT_TRUE(job.Reaches(3));
  AgentProcess agent("--records " + job.rings());
  const Outcome looks = Shell(absl::StrCat(
      std::getenv("WEFT_BIN"), "/weft-top --json --every 100ms --agent 127.0.0.1:1 --agent ",
      "127.0.0.1:", agent.port(), " 2> ", job / "said", " | head -n 5"));
  std::vector<nlohmann::json> tops;
  for (absl::string_view line : absl::StrSplit(looks.output, '\n', absl::SkipEmpty())) {
    tops.push_back(nlohmann::json::parse(line));
  }
  ASSERT_EQ(tops.size(), 5u) << looks.output;
  const auto received = [&](size_t look) { return tops[look]["received_bytes"].get<int64_t>(); };
  EXPECT_GT(received(0), 0);
  EXPECT_GT(received(4), received(0));
  EXPECT_LT((received(4) - received(0)) / 4, 3 * 64 * 1024);  // of three rings of 256 KiB
  EXPECT_GE(tops[4]["ranks"][0]["step"], tops[0]["ranks"][0]["step"]);
  EXPECT_EQ(tops[4]["ranks"].size(), 3u);
  EXPECT_EQ(tops[4]["ranks"][1]["records_lost"], 0);
  const std::string said = Slurp(job / "said");
  EXPECT_THAT(said, HasSubstr("agent 127.0.0.1:1: "));
  EXPECT_EQ(said.find("agent 127.0.0.1:1", said.find("agent 127.0.0.1:1") + 1), std::string::npos);
}

// The rings that a program fetches of a large job take gigabytes.
TEST(Programs, LeaveNothingOfWhatTheyHaveFetchedWhenASignalEndsThem) {
  Job job("--fault none --steps 5000 --step-time 200ms");
  ASSERT_TRUE(job.Reaches(3));
  AgentProcess agent("--records " + job.rings());
  const std::string folder = job / "fetched";
  const Outcome looks = Shell(absl::StrCat(
      "mkdir ", folder, "; TMPDIR=", folder, " ", std::getenv("WEFT_BIN"),
      "/weft-top --json --every 1h --agent 127.0.0.1:", agent.port(), " > ", job / "top",
      " & top=$!; until [ -s ", job / "top", " ]; do sleep 0.05; done; ls ", folder,
      " | wc -l; kill -TERM $top; wait $top; echo $?; ls ", folder, " | wc -l"));
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit(looks.output, '\n', absl::SkipEmpty())),
              testing::ElementsAre("1", "143", "0"));
}

// Nobody listens at the sink: what it does not take is counted, and the pages go on.
TEST(Programs, CountWhatADeadSinkDoesNotTake) {
  ScratchFolder folder;
  AgentProcess agent(absl::StrCat("--records ", folder / "none", " --otlp 127.0.0.1:1"));
  bool counted = false;
  for (int tries = 0; tries < 600 && !counted; ++tries) {
    auto metrics = agent.Get("/metrics");
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    counted = metrics->find("weft_agent_push_failures_total 1") != std::string::npos &&
              metrics->find("weft_agent_rows_dropped_total 0") == std::string::npos;
    if (!counted) absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_TRUE(counted);
}

TEST(Programs, ArePromtoolClean) {
  if (Shell("command -v promtool").status != 0) {
    GTEST_SKIP() << "promtool is not here (Debian's package prometheus has it)";
  }
  Job job("--fault none --steps 5000 --step-time 20ms");
  ASSERT_TRUE(job.Reaches(3));
  AgentProcess agent("--records " + job.rings());
  auto metrics = agent.Get("/metrics");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  std::ofstream(job / "metrics") << *metrics;
  const Outcome checked = Shell("promtool check metrics < " + (job / "metrics"));
  EXPECT_EQ(checked.status, 0) << checked.output;
  const Outcome rules = Shell(absl::StrCat("promtool check rules ", std::getenv("WEFT_SOURCE"),
                                           "/docs/monitoring/weft-alerts.yml"));
  EXPECT_EQ(rules.status, 0) << rules.output;
}

// --agent of the launcher, whose pages live as long as the job.
TEST(Programs, ServeTheirJobFromTheLauncher) {
  Job job("--fault none --steps 40 --step-time 20ms", "--agent 127.0.0.1:0");
  EXPECT_EQ(job.Wait(), 0) << job.Output();
  EXPECT_THAT(job.Output(), HasSubstr("weft-run: http://127.0.0.1:"));
  Job refused("--fault none --steps 2 --step-time 5ms", "--agent 0.0.0.0:0");
  EXPECT_EQ(refused.Wait(), 0);
  EXPECT_THAT(refused.Output(), HasSubstr("--agent: listening on 0.0.0.0:0"));
}

TEST(Programs, SayWhatIsMissing) {
  ScratchFolder folder;
  for (const char* program : {"weft-top --once", "weft-diagnose", "weft-trace --html /dev/null"}) {
    const Outcome outcome = RunProgram(absl::StrCat(program, " --records ", folder / "none"));
    EXPECT_EQ(outcome.status, 1) << program;
    EXPECT_THAT(outcome.output, HasSubstr("no records of any job")) << program;
  }
  EXPECT_EQ(RunProgram("weft-trace").status, 2);
  EXPECT_EQ(RunProgram("weft-fault run --fault none-such").status, 2);
}

}  // namespace
}  // namespace weft::observe
