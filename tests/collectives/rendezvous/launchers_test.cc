// Places in a job, read from environments as Open MPI 4.1.4 and Slurm 22.05.8 gave them to ranks.
#include "collectives/rendezvous/launchers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/socket_address.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"

namespace weft::collectives {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;
using testing::SizeIs;

using Environment = std::map<std::string, std::string>;

Environment With(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Environment Without(Environment base, const std::string& name) {
  base.erase(name);
  return base;
}

absl::StatusOr<JobEnvironment> Parse(const Environment& environment) {
  return JobEnvironment::Parse([&](absl::string_view name) -> std::optional<std::string> {
    const auto found = environment.find(std::string(name));
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

std::string ErrorOf(const Environment& environment) {
  const absl::Status status = Parse(environment).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

// mpirun --oversubscribe -n 4, rank 2.
Environment OpenMpi() {
  return {{"OMPI_APP_CTX_NUM_PROCS", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
          {"OMPI_COMM_WORLD_NODE_RANK", "2"},
          {"OMPI_COMM_WORLD_RANK", "2"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_MCA_ess_base_jobid", "1481375745"},
          {"OMPI_MCA_ess_base_vpid", "2"},
          {"OMPI_MCA_orte_num_nodes", "1"},
          {"OMPI_UNIVERSE_SIZE", "2"},
          {"PMIX_NAMESPACE", "1481375745"},
          {"PMIX_RANK", "2"}};
}

// Task 2 of srun -N1 -n4 in an allocation of 3 hosts and 6 tasks.
Environment SlurmOnOneHost() {
  return {{"SLURMD_NODENAME", "h3"},
          {"SLURM_CLUSTER_NAME", "weft"},
          {"SLURM_JOB_ID", "1"},
          {"SLURM_JOB_NODELIST", "h[3-4,8]"},
          {"SLURM_JOB_NUM_NODES", "3"},
          {"SLURM_LOCALID", "2"},
          {"SLURM_NNODES", "1"},
          {"SLURM_NODEID", "0"},
          {"SLURM_NODELIST", "h[3-4,8]"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_PROCID", "2"},
          {"SLURM_STEPID", "1"},
          {"SLURM_STEP_ID", "1"},
          {"SLURM_STEP_NODELIST", "h3"},
          {"SLURM_STEP_NUM_NODES", "1"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_TASKS_PER_NODE", "4"},
          {"SLURM_TASKS_PER_NODE", "4"}};
}

// The same allocation: srun -n4 --distribution=arbitrary with hosts h4, h8, h4, h3; task 0.
Environment SlurmArbitrary() {
  return With(SlurmOnOneHost(), {{"SLURMD_NODENAME", "h4"},
                                 {"SLURM_LOCALID", "0"},
                                 {"SLURM_NNODES", "3"},
                                 {"SLURM_NODEID", "1"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_STEPID", "2"},
                                 {"SLURM_STEP_ID", "2"},
                                 {"SLURM_STEP_NODELIST", "h[3-4,8]"},
                                 {"SLURM_STEP_NUM_NODES", "3"},
                                 {"SLURM_STEP_TASKS_PER_NODE", "1,2,1"},
                                 {"SLURM_TASKS_PER_NODE", "1,2,1"}});
}

// Its task 3, on h3.
Environment SlurmArbitraryThree() {
  return With(SlurmArbitrary(),
              {{"SLURMD_NODENAME", "h3"}, {"SLURM_NODEID", "0"}, {"SLURM_PROCID", "3"}});
}

// What sbatch gives the script itself.
Environment SlurmBatch() {
  return {
      {"SLURMD_NODENAME", "h3"},      {"SLURM_CLUSTER_NAME", "weft"}, {"SLURM_GTIDS", "0"},
      {"SLURM_JOB_ID", "1"},          {"SLURM_JOB_NUM_NODES", "2"},   {"SLURM_LOCALID", "0"},
      {"SLURM_NNODES", "2"},          {"SLURM_NODEID", "0"},          {"SLURM_NODELIST", "h[3,8]"},
      {"SLURM_NPROCS", "4"},          {"SLURM_NTASKS", "4"},          {"SLURM_PROCID", "0"},
      {"SLURM_TASKS_PER_NODE", "3,1"}};
}

const char* const kSecret = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

TEST(LaunchersTest, ReadsOpenMpisPlace) {
  const auto job = Parse(OpenMpi());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(job->rank, Rank(2));
  EXPECT_EQ(job->world_size, 4);
  EXPECT_EQ(job->local_rank, 2);
  EXPECT_EQ(job->local_world_size, 4);
  EXPECT_EQ(job->job, "openmpi-1481375745");
  EXPECT_EQ(job->meeting.address, absl::StrCat("unix:weft-", geteuid(), "-openmpi-1481375745"));
  EXPECT_FALSE(job->meeting.serves);
  const auto zero =
      Parse(With(OpenMpi(), {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  ASSERT_TRUE(zero.ok()) << zero.status();
  EXPECT_TRUE(zero->meeting.serves);
  EXPECT_EQ(zero->meeting.listen, job->meeting.address);
}

TEST(LaunchersTest, ReadsSlurmsPlaceOnOneHost) {
  const auto job = Parse(SlurmOnOneHost());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->launcher, Launcher::kSlurm);
  EXPECT_EQ(job->rank, Rank(2));
  EXPECT_EQ(job->world_size, 4);
  EXPECT_EQ(job->local_rank, 2);
  EXPECT_EQ(job->local_world_size, 4);
  EXPECT_EQ(job->group_rank, 0);
  EXPECT_EQ(job->job, "slurm-weft-1.1");
  EXPECT_EQ(job->meeting.address, absl::StrCat("unix:weft-", geteuid(), "-slurm-weft-1.1"));
  EXPECT_FALSE(job->meeting.serves);
}

TEST(LaunchersTest, TheFirstTaskOfSlurmsFirstHostServesWhereverRankZeroIs) {
  const Environment secret = {{"WEFT_JOB_SECRET", kSecret}};
  const auto zero = Parse(With(SlurmArbitrary(), secret));
  const auto three = Parse(With(SlurmArbitraryThree(), secret));
  ASSERT_TRUE(zero.ok()) << zero.status();
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(zero->rank, Rank(0));
  EXPECT_EQ(zero->local_world_size, 2);
  EXPECT_EQ(zero->group_rank, 1);
  EXPECT_FALSE(zero->meeting.serves);
  EXPECT_EQ(three->rank, Rank(3));
  EXPECT_EQ(three->local_world_size, 1);
  EXPECT_TRUE(three->meeting.serves);
  EXPECT_EQ(zero->meeting.address, three->meeting.address);
  EXPECT_THAT(zero->meeting.address, MatchesRegex("h3:[0-9]+"));
  EXPECT_THAT(three->meeting.listen, MatchesRegex(":[0-9]+"));
  // Another step meets elsewhere.
  const auto other = Parse(With(With(SlurmArbitrary(), secret), {{"SLURM_STEP_ID", "3"}}));
  EXPECT_NE(other->meeting.address, zero->meeting.address);
}

TEST(LaunchersTest, TheMastersVariablesSayWhereSeveralHostsMeet) {
  const Environment master = {
      {"WEFT_JOB_SECRET", kSecret}, {"MASTER_ADDR", "h4"}, {"MASTER_PORT", "29500"}};
  const auto zero = Parse(With(SlurmArbitrary(), master));
  ASSERT_TRUE(zero.ok()) << zero.status();
  EXPECT_EQ(zero->meeting.address, "h4:29500");
  EXPECT_TRUE(zero->meeting.serves) << "the first task of h4";
  EXPECT_FALSE(Parse(With(SlurmArbitraryThree(), master))->meeting.serves);
  // An address that is no name of the step's stands for the first host.
  const auto numeric =
      Parse(With(With(SlurmArbitraryThree(), master), {{"MASTER_ADDR", "10.0.0.7"}}));
  EXPECT_EQ(numeric->meeting.address, "10.0.0.7:29500");
  EXPECT_TRUE(numeric->meeting.serves);
}

TEST(LaunchersTest, ABatchScriptIsNoTaskOfAStep) {
  const auto job = Parse(SlurmBatch());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->launcher, Launcher::kNone);
  EXPECT_EQ(job->world_size, 1);
  for (const char* step : {"batch", "4294967291", "interactive", "4294967290"}) {
    const auto special = Parse(With(SlurmBatch(), {{"SLURM_STEP_ID", step}}));
    ASSERT_TRUE(special.ok()) << step << ": " << special.status();
    EXPECT_EQ(special->world_size, 1) << step;
  }
}

TEST(LaunchersTest, AStepOfOneTaskIsAProcessAlone) {
  const auto job = Parse(With(SlurmOnOneHost(), {{"SLURM_STEP_NUM_TASKS", "1"},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                                 {"SLURM_PROCID", "0"},
                                                 {"SLURM_LOCALID", "0"}}));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->world_size, 1);
  EXPECT_THAT(job->meeting.address, IsEmpty());
}

TEST(LaunchersTest, TheInnermostLauncherIsTheOne) {
  // mpirun in an allocation starts its daemons by srun.
  auto job = Parse(With(SlurmOnOneHost(), OpenMpi()));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->launcher, Launcher::kOpenMpi);
  // srun starts torchrun on each host, or weft-run.
  const Environment ranks = {{"RANK", "9"},
                             {"WORLD_SIZE", "32"},
                             {"LOCAL_RANK", "1"},
                             {"GROUP_RANK", "2"},
                             {"LOCAL_WORLD_SIZE", "8"}};
  for (const Environment& sign :
       {Environment{{"TORCHELASTIC_RUN_ID", "17"}, {"MASTER_ADDR", "h3"}, {"MASTER_PORT", "29500"}},
        Environment{{"WEFT_STORE", "h3:29501"}, {"WEFT_JOB_ID", "17"}}}) {
    job = Parse(With(With(SlurmOnOneHost(), ranks), sign));
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->launcher, Launcher::kTorchrun);
    EXPECT_EQ(job->rank, Rank(9));
    EXPECT_EQ(job->world_size, 32);
    EXPECT_EQ(job->job, "17");
  }
}

TEST(LaunchersTest, RanksSetByHandMustNotContradictTheLauncher) {
  const Environment hand = {
      {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h3"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(Parse(With(SlurmOnOneHost(), hand))->launcher, Launcher::kTorchrun);
  EXPECT_THAT(ErrorOf(With(With(SlurmOnOneHost(), hand), {{"RANK", "0"}})),
              AllOf(HasSubstr("RANK=0 of WORLD_SIZE=4"),
                    HasSubstr("SLURM_PROCID=2 of SLURM_STEP_NUM_TASKS=4"),
                    HasSubstr("WEFT_JOB_LAUNCHER=slurm")));
  EXPECT_THAT(ErrorOf(With(With(OpenMpi(), hand), {{"WORLD_SIZE", "8"}})),
              AllOf(HasSubstr("RANK=2 of WORLD_SIZE=8"),
                    HasSubstr("OMPI_COMM_WORLD_RANK=2 of OMPI_COMM_WORLD_SIZE=4")));
  // Without RANK, as batch scripts export it.
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"WORLD_SIZE", "8"}})),
              AllOf(HasSubstr("WORLD_SIZE='8'"), HasSubstr("right would be 4"),
                    HasSubstr("SLURM_STEP_NUM_TASKS=4")));
  EXPECT_EQ(Parse(With(SlurmOnOneHost(), {{"WORLD_SIZE", "4"}}))->launcher, Launcher::kSlurm);
}

TEST(LaunchersTest, TheOverrideSaysWhichLauncherIsMeant) {
  const Environment both = With(With(SlurmOnOneHost(), OpenMpi()), {{"RANK", "0"}});
  EXPECT_EQ(Parse(With(both, {{"WEFT_JOB_LAUNCHER", "slurm"}}))->launcher, Launcher::kSlurm);
  EXPECT_EQ(Parse(With(both, {{"WEFT_JOB_LAUNCHER", "openmpi"}}))->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(Parse(With(both, {{"WEFT_JOB_LAUNCHER", "none"}}))->world_size, 1);
  EXPECT_THAT(ErrorOf(With(both, {{"WEFT_JOB_LAUNCHER", "torchrun"}})),
              HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(ErrorOf(With(both, {{"WEFT_JOB_LAUNCHER", "srun"}})),
              AllOf(HasSubstr("WEFT_JOB_LAUNCHER='srun'"), HasSubstr("openmpi")));
  EXPECT_THAT(ErrorOf(With(SlurmBatch(), {{"WEFT_JOB_LAUNCHER", "slurm"}})),
              HasSubstr("no step of srun's"));
}

TEST(LaunchersTest, NamesWhatOpenMpiLeftOutOrSaidWrong) {
  EXPECT_THAT(ErrorOf(Without(OpenMpi(), "OMPI_COMM_WORLD_SIZE")),
              AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is not set"), HasSubstr("openmpi")));
  EXPECT_THAT(ErrorOf(Without(OpenMpi(), "OMPI_COMM_WORLD_RANK")),
              HasSubstr("OMPI_COMM_WORLD_RANK is not set"));
  EXPECT_THAT(ErrorOf(Without(Without(OpenMpi(), "PMIX_NAMESPACE"), "OMPI_MCA_ess_base_jobid")),
              HasSubstr("PMIX_NAMESPACE"));
  EXPECT_THAT(ErrorOf(With(OpenMpi(), {{"OMPI_COMM_WORLD_RANK", "two"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK='two' is no number from 0 to"));
  EXPECT_THAT(ErrorOf(With(OpenMpi(), {{"OMPI_COMM_WORLD_RANK", "4"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4"));
  EXPECT_THAT(ErrorOf(With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}})),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=5 is above OMPI_COMM_WORLD_SIZE=4"));
}

TEST(LaunchersTest, NamesWhatSlurmLeftOutOrSaidWrong) {
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID",
                           "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}) {
    EXPECT_THAT(ErrorOf(Without(SlurmOnOneHost(), name)),
                HasSubstr(absl::StrCat(name, " is not set")));
  }
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"SLURM_PROCID", "4"}})),
              HasSubstr("SLURM_PROCID=4 is not below SLURM_STEP_NUM_TASKS=4"));
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"SLURM_NODEID", "1"}})),
              HasSubstr("SLURM_NODEID=1 is not below the number of hosts=1"));
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"SLURM_LOCALID", "4"}})),
              HasSubstr("SLURM_LOCALID=4 is not below"));
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"SLURM_STEP_ID", "first"}})),
              HasSubstr("SLURM_STEP_ID='first' is no number"));
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"SLURM_STEP_NODELIST", "h[3"}})),
              HasSubstr("SLURM_STEP_NODELIST: hostlist 'h[3', character 4"));
  EXPECT_THAT(ErrorOf(With(SlurmOnOneHost(), {{"SLURM_STEP_NODELIST", "h[3-4]"}})),
              HasSubstr("does not place SLURM_STEP_NUM_TASKS=4 tasks on SLURM_STEP_NODELIST"));
}

TEST(LaunchersTest, SeveralHostsNeedASecretAndTheErrorSaysHow) {
  EXPECT_THAT(ErrorOf(SlurmArbitrary()),
              AllOf(HasSubstr("WEFT_JOB_SECRET is not set"), HasSubstr("batch script"),
                    HasSubstr("export WEFT_JOB_SECRET=$(openssl rand -hex 32)")));
  const Environment apart = With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}});
  EXPECT_THAT(ErrorOf(apart), AllOf(HasSubstr("WEFT_JOB_SECRET is not set"),
                                    HasSubstr("mpirun -x MASTER_ADDR=node0")));
  const auto job = Parse(With(apart, {{"WEFT_JOB_SECRET", kSecret}, {"MASTER_ADDR", "node0"}}));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->meeting.address, MatchesRegex("node0:[0-9]+"));
  EXPECT_FALSE(job->meeting.serves);
  // A store that somebody else serves has its own secret to ask for.
  EXPECT_TRUE(Parse(With(SlurmArbitrary(), {{"WEFT_STORE", "login:29501"}})).ok());
  EXPECT_THAT(ErrorOf(With(SlurmArbitrary(), {{"WEFT_JOB_SECRET", "12"}})),
              AllOf(HasSubstr("64 hexadecimal digits"), Not(HasSubstr("is not set"))));
}

TEST(LaunchersTest, NamesOfJobsAreShortAndPlain) {
  const auto named = [](const std::string& name) {
    return Parse(With(OpenMpi(), {{"PMIX_NAMESPACE", name}}))->job;
  };
  EXPECT_EQ(named("prterun-node0-4711@1"), "openmpi-prterun-node0-4711@1");
  const std::string odd = named("a b/c");
  EXPECT_THAT(odd, MatchesRegex("openmpi-a-b-c-[0-9a-f]{16}"));
  EXPECT_NE(odd, named("a-b c"));
  const std::string beginning(200, 'x');
  EXPECT_THAT(named(beginning), SizeIs(57));
  EXPECT_NE(named(beginning + "1"), named(beginning + "2"));
}

TEST(LaunchersTest, CountsOfTasksByHost) {
  EXPECT_THAT(*ParseTasksPerNode("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ParseTasksPerNode("4"), ElementsAre(4));
  for (const char* wrong : {"", "0", "-1", "2,", "2(x)", "2(3)", "2(x3", "a", "2(x0)",
                            "1(x99999999)", "1048576,1", "4294967297"}) {
    EXPECT_EQ(ParseTasksPerNode(wrong).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

// Two ranks of each launcher meet, without a variable more than the launcher sets.
TEST(LaunchersTest, RanksOfOneHostMeetAtTheUnixSocketOfTheirJob) {
  const std::string own = absl::StrCat("test-", getpid());
  const std::vector<std::pair<Environment, Environment>> jobs = {
      {With(OpenMpi(), {{"PMIX_NAMESPACE", own},
                        {"OMPI_COMM_WORLD_RANK", "0"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       With(OpenMpi(), {{"PMIX_NAMESPACE", own}})},
      {With(SlurmOnOneHost(),
            {{"SLURM_CLUSTER_NAME", own}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}),
       With(SlurmOnOneHost(), {{"SLURM_CLUSTER_NAME", own}})}};
  for (const auto& [first, second] : jobs) {
    auto zero = StoreFromEnvironment(Parse(first).value(), absl::Minutes(1));
    ASSERT_TRUE(zero.ok()) << zero.status();
    auto two = StoreFromEnvironment(Parse(second).value(), absl::Minutes(1));
    ASSERT_TRUE(two.ok()) << two.status();
    ASSERT_TRUE(zero->store->Set("hello", "from zero").ok());
    EXPECT_EQ(two->store->Get("hello", absl::Minutes(1)).value(), "from zero");
    // A second process that believes to be the server is told what is taken.
    const absl::Status taken =
        StoreFromEnvironment(Parse(first).value(), absl::Minutes(1)).status();
    EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists) << taken;
    EXPECT_THAT(std::string(taken.message()), HasSubstr(own));
    two->store.reset();  // before the server waits for it
  }
}

// Serves `address` as another user until it is destroyed. In a process of its own.
class Squatter {
 public:
  explicit Squatter(const std::string& address) {
    const auto addresses = ResolveNumeric(address);
    EXPECT_TRUE(addresses.ok()) << addresses.status();
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe(ready.data()), 0);
    child_ = fork();
    if (child_ == 0) {
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      const SocketAddress& own = addresses->front();
      const bool serves = setresuid(kNobody, kNobody, kNobody) == 0 &&
                          prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
                          bind(fd, own.get(), own.size()) == 0 && listen(fd, 8) == 0;
      if (serves && write(ready[1], "y", 1) == 1) pause();
      _exit(1);
    }
    close(ready[1]);
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    close(ready[0]);
  }
  ~Squatter() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  pid_t child_ = -1;
};

TEST(LaunchersTest, AnotherUsersProcessAtTheJobsSocketIsTurnedDown) {
  if (geteuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  const std::string own = absl::StrCat("squatted-", getpid());
  const JobEnvironment two = Parse(With(OpenMpi(), {{"PMIX_NAMESPACE", own}})).value();
  const Squatter squatter(two.meeting.address);
  const absl::Status status = StoreFromEnvironment(two, absl::Minutes(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("another user's process"), HasSubstr(own)));
}

// The server of a job on several hosts listens on every address, whatever its own name means.
TEST(LaunchersTest, RanksOfSeveralHostsMeetWithTheirSecretAlone) {
  auto probe = StoreServer::Start({});
  ASSERT_TRUE(probe.ok()) << probe.status();
  const std::string port = std::to_string((*probe)->port());
  probe->reset();
  const Environment meeting = {
      {"WEFT_JOB_SECRET", kSecret}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  auto three =
      StoreFromEnvironment(Parse(With(SlurmArbitraryThree(), meeting)).value(), absl::Minutes(1));
  ASSERT_TRUE(three.ok()) << three.status();
  auto zero =
      StoreFromEnvironment(Parse(With(SlurmArbitrary(), meeting)).value(), absl::Minutes(1));
  ASSERT_TRUE(zero.ok()) << zero.status();
  EXPECT_EQ(zero->store->Add("n", 3).value(), 3);
  zero->store.reset();
  Environment other_secret = With(SlurmArbitrary(), meeting);
  other_secret["WEFT_JOB_SECRET"] = net::SecretToHex(net::NewJobSecret());
  EXPECT_EQ(StoreFromEnvironment(Parse(other_secret).value(), absl::Minutes(1)).status().code(),
            absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace weft::collectives
