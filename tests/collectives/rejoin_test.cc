// A rank of a job dies, and another process takes its place: the others keep their endpoints and
// their links to each other, and only what leads to the new process is made.
#include "collectives/rejoin.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "collectives/recovery.h"
#include "collectives/rendezvous/fast_init.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "tests/collectives/job.h"
#include "tests/collectives/memory_store.h"
#include "topology/job/mesh.h"

namespace weft::collectives {
namespace {

constexpr int kTensor = 2, kData = 4, kRanks = kTensor * kData;
constexpr int kVictim = 3;
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint32_t kNeverSentTag = 9, kNeverReceivedTag = 10;
constexpr size_t kLarge = 1 << 18;  // floats

// What a process asks a store for.
struct Asked {
  int64_t all = 0, exchanges = 0, reads = 0, writes = 0;
};

class CountingStore final : public Store {
 public:
  explicit CountingStore(Store* store) : store_(store) {}
  Asked asked;

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    ++asked.all, ++asked.writes;
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    ++asked.all, ++asked.reads;
    return store_->Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    ++asked.all, ++asked.writes;
    return store_->Add(key, amount);
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    ++asked.all;
    return store_->CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override { return store_->Delete(key); }
  absl::StatusOr<int64_t> KeyCount() override { return store_->KeyCount(); }
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override {
    ++asked.all;
    return store_->Check(keys);
  }
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    ++asked.all;
    return store_->Wait(keys, timeout);
  }
  absl::Status Append(absl::string_view key, absl::string_view value) override {
    ++asked.all;
    return store_->Append(key, value);
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override {
    ++asked.all, ++asked.reads;
    return store_->MultiGet(keys, timeout);
  }
  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override {
    ++asked.all, ++asked.writes;
    return store_->MultiSet(keys, values);
  }
  absl::Status Barrier(absl::string_view key, int rank, int size, absl::Duration timeout) override {
    ++asked.all, ++asked.exchanges;
    return store_->Barrier(key, rank, size, timeout);
  }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank, int size,
                                                     absl::string_view value,
                                                     absl::Duration timeout) override {
    ++asked.all, ++asked.exchanges;
    return store_->AllGather(key, rank, size, value, timeout);
  }
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view key, int rank, int size,
                                                    absl::string_view value, const RankSet& wanted,
                                                    absl::Duration timeout) override {
    ++asked.all, ++asked.exchanges;
    return store_->Exchange(key, rank, size, value, wanted, timeout);
  }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view key, int rank, int size,
                                                  int root, absl::string_view value,
                                                  absl::Duration timeout) override {
    ++asked.all, ++asked.exchanges;
    return store_->Gather(key, rank, size, root, value, timeout);
  }
  absl::StatusOr<StoreWatched> Watch(absl::string_view key, int64_t known,
                                     absl::Duration timeout) override {
    ++asked.all;
    return store_->Watch(key, known, timeout);
  }

 private:
  Store* const store_;
};

// What a process of the job tells the test at its end.
struct Report {
  int32_t rank = -1;
  int32_t rejoined = 0;  // without a join of all
  int32_t host_of_victim = -1;
  int32_t by_rings = 0;              // small calls go by rings in the end
  int64_t opened = 0, accepted = 0;  // links, in the recovery
  Asked asked;                       // likewise
};

struct Groups {
  std::unique_ptr<Communicator> world, tensor, data;
};

class Process {
 public:
  Process(int rank, int generation, std::string host, SettingPairs settings)
      : rank_(rank), generation_(generation), host_(std::move(host)), settings_(settings) {}

  // False: something is wrong, and is said.
  bool Run(const std::string& address, Report& report) {
    const absl::Status status = Body(address, report);
    if (!status.ok()) absl::FPrintF(stderr, "rank %d: %s\n", rank_, status.ToString());
    return status.ok();
  }

 private:
  absl::Status Body(const std::string& address, Report& report) {
    StoreClientOptions client;
    client.address = address;
    client.rank = Rank(rank_);
    client.generation = generation_;
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<StoreClient> connected,
                          StoreClient::Connect(client));
    store_ = std::make_unique<CountingStore>(connected.get());
    JobEnvironment environment;
    environment.rank = Rank(rank_);
    environment.world_size = kRanks;
    environment.generation = generation_;
    environment.recover = true;
    Recovery recovery(store_.get(), environment);
    WEFT_RETURN_IF_ERROR(recovery.First(kPatience).status());
    WEFT_RETURN_IF_ERROR(Open(recovery));
    recovery.Joined();
    if (generation_ == 0) {
      WEFT_RETURN_IF_ERROR(Sum());
      WEFT_RETURN_IF_ERROR(store_->Barrier("all have summed", rank_, kRanks, kPatience));
      WEFT_RETURN_IF_ERROR(LoseTheVictim());
      const Rejoinable::LinkTotals before = AsRejoinable(*endpoint_).links_made();
      store_->asked = {};
      WEFT_RETURN_IF_ERROR(recovery
                               .Next(kPatience,
                                     [&](const std::vector<int>& replaced) {
                                       return AsRejoinable(*endpoint_).Forget(replaced);
                                     })
                               .status());
      report.rejoined = recovery.rejoins() ? 1 : 0;
      if (!recovery.rejoins()) return absl::InternalError("all have to join anew");
      WEFT_RETURN_IF_ERROR(AsRejoinable(*endpoint_).Rejoin(recovery.rejoining()));
      WEFT_RETURN_IF_ERROR(MakeGroups());
      report.opened = -before.opened;
    }
    WEFT_RETURN_IF_ERROR(Sum());
    const Rejoinable::LinkTotals links = AsRejoinable(*endpoint_).links_made();
    report.opened += links.opened;
    report.accepted = links.accepted;
    report.asked = store_->asked;
    report.host_of_victim = endpoint_->host(Rank(kVictim));
    float one = 1;
    const WorkPtr small =
        groups_.world->AllReduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);
    WEFT_RETURN_IF_ERROR(small->Wait(kPatience));
    report.by_rings = small->algorithm() == "multicast" ? 1 : 0;
    // Nobody goes before all have said how many links there are.
    WEFT_RETURN_IF_ERROR(groups_.world->Barrier()->Wait(kPatience));
    groups_ = {};
    endpoint_.reset();
    return absl::OkStatus();
  }

  absl::Status Open(const Recovery& recovery) {
    RejoinableOptions options;
    options.rank = Rank(rank_);
    options.world_size = kRanks;
    options.generation = generation_;
    options.store = store_.get();
    options.host = host_;
    options.settings = SettingsOf(settings_);
    options.rejoins = true;
    if (recovery.rejoins()) options.rejoining = recovery.rejoining();
    WEFT_ASSIGN_OR_RETURN(options.mesh, topology::Mesh::Create({{topology::Axis::kTensor, kTensor},
                                                                {topology::Axis::kData, kData}}));
    WEFT_ASSIGN_OR_RETURN(endpoint_, CreateRejoinable(std::move(options)));
    return MakeGroups();
  }

  absl::Status MakeGroups() {
    std::vector<Rank> tensor, data;
    for (int i = 0; i < kTensor; ++i) tensor.emplace_back(rank_ / kTensor * kTensor + i);
    for (int i = 0; i < kData; ++i) data.emplace_back(rank_ % kTensor + i * kTensor);
    WEFT_ASSIGN_OR_RETURN(groups_.world,
                          Communicator::Create(endpoint_, "world", AllRanks(kRanks)));
    WEFT_ASSIGN_OR_RETURN(
        groups_.tensor,
        Communicator::Create(endpoint_, absl::StrCat("tensor", rank_ / kTensor), tensor));
    WEFT_ASSIGN_OR_RETURN(
        groups_.data, Communicator::Create(endpoint_, absl::StrCat("data", rank_ % kTensor), data));
    return absl::OkStatus();
  }

  absl::Status Sum() {
    for (Communicator* group : {groups_.tensor.get(), groups_.data.get(), groups_.world.get()}) {
      for (const size_t count : {size_t{8}, kLarge}) {
        WEFT_RETURN_IF_ERROR(SumOfOnes(*group, count));
      }
    }
    return absl::OkStatus();
  }

  // Leaves requests at every link that nothing matches, and has collectives under way, by links and
  // by rings, and rings half opened, when the victim dies.
  absl::Status LoseTheVictim() {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> late,
                          Communicator::Create(endpoint_, "late", AllRanks(kRanks)));
    const auto add = [](Communicator& group, std::vector<float>& data) {
      return group.AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32,
                             ReduceOp::kSum);
    };
    std::vector<float> unsent(kLarge), unreceived(kLarge), sum(kLarge, 1);
    const GroupRank next((rank_ + 1) % kRanks), previous((rank_ + kRanks - 1) % kRanks);
    std::vector<WorkPtr> works = {
        groups_.world->Receive(unsent.data(), kLarge * sizeof(float), previous, kNeverSentTag),
        groups_.world->Send(unreceived.data(), kLarge * sizeof(float), next, kNeverReceivedTag)};
    if (rank_ == kVictim) {
      poll(nullptr, 0, 100);  // the others meet at the late group meanwhile
      kill(getpid(), SIGKILL);
    }
    std::vector<float> few(8, 1), small(8, 1), all(kLarge, 1);
    works.push_back(add(*late, few));
    works.push_back(add(*groups_.data, sum));
    works.push_back(add(*groups_.world, small));
    works.push_back(add(*groups_.world, all));
    for (auto work = works.rbegin(); work != works.rend(); ++work) {
      (*work)->Wait(kPatience).IgnoreError();
    }
    groups_ = {};
    return absl::OkStatus();
  }

  const int rank_, generation_;
  const std::string host_;
  const SettingPairs settings_;
  std::unique_ptr<CountingStore> store_;
  std::shared_ptr<Endpoint> endpoint_;
  Groups groups_;
};

// The job, and a process that takes the victim's place. All are forked before the store's server
// has a thread, and learn its address through a pipe.
class Job {
 public:
  Job(const SettingPairs& settings, const std::string& host_of_new) {
    EXPECT_EQ(pipe(tell_.data()), 0);
    EXPECT_EQ(pipe(go_.data()), 0);
    EXPECT_EQ(pipe(told_.data()), 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      children_.push_back(Fork(Process(rank, 0, "here", settings), tell_));
    }
    children_.push_back(Fork(Process(kVictim, 1, host_of_new, settings), go_));
    server_ = *StoreServer::Start({});
    address_ = server_->address();
    address_.resize(kAddress);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(write(tell_[1], address_.data(), kAddress), kAddress);
    }
  }
  ~Job() {
    for (const pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    }
    for (const auto& pipe : {tell_, go_, told_}) close(pipe[0]), close(pipe[1]);
  }

  // What each process but the victim reports; the new one's report is the last.
  std::vector<Report> Reports() {
    EXPECT_EQ(Wait(kVictim), SIGKILL);
    EXPECT_EQ(write(go_[1], address_.data(), kAddress), kAddress);
    std::vector<Report> survivors, fresh;
    for (int child = 0; child <= kRanks; ++child) {
      if (child == kVictim) continue;
      EXPECT_EQ(Wait(child), 0) << child;
    }
    if (testing::Test::HasFailure()) return {};
    for (int i = 0; i < kRanks; ++i) {
      Report report;
      EXPECT_EQ(read(told_[0], &report, sizeof(report)), ssize_t{sizeof(report)});
      (report.rank == kVictim ? fresh : survivors).push_back(report);
    }
    survivors.insert(survivors.end(), fresh.begin(), fresh.end());
    return survivors;
  }

 private:
  static constexpr ssize_t kAddress = 64;

  pid_t Fork(Process process, const std::array<int, 2>& from) {
    const pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives a test that is cut off
    close(tell_[1]), close(go_[1]);
    char address[kAddress] = {};
    Report report;
    const bool done = read(from[0], address, kAddress) == kAddress && process.Run(address, report);
    report.rank = children_.size() == kRanks ? kVictim : static_cast<int>(children_.size());
    const bool said = write(told_[1], &report, sizeof(report)) == ssize_t{sizeof(report)};
    _exit(done && said ? 0 : 1);
  }

  int Wait(int child) {
    pid_t& pid = children_[static_cast<size_t>(child)];
    const absl::Time end = absl::Now() + kPatience;
    while (absl::Now() < end) {
      int status = 0;
      if (waitpid(pid, &status, WNOHANG) == pid) {
        pid = 0;
        return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
      }
      poll(nullptr, 0, 2);
    }
    return -1;
  }

  std::array<int, 2> tell_, go_, told_;
  std::vector<pid_t> children_;
  std::unique_ptr<StoreServer> server_;
  std::string address_;
};

class RejoinTest : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With() const { return {absl::StrCat("transport=", GetParam()), "log.level=error"}; }
};

TEST_P(RejoinTest, OnlyWhatLeadsToTheNewProcessIsMade) {
  const std::vector<Report> reports = Job(With(), "here").Reports();
  ASSERT_EQ(reports.size(), static_cast<size_t>(kRanks));
  const Report& fresh = reports.back();
  int64_t opened_by_survivors = 0;
  for (size_t i = 0; i + 1 < reports.size(); ++i) {
    const Report& survivor = reports[i];
    EXPECT_EQ(survivor.rejoined, 1) << survivor.rank;
    EXPECT_EQ(survivor.host_of_victim, 0) << survivor.rank;
    opened_by_survivors += survivor.opened;
    // It arrives (two writes), and reads who was replaced; it watches one key meanwhile, and one of
    // all marks the epoch as ready.
    EXPECT_EQ(survivor.asked.exchanges, 0) << survivor.rank;
    EXPECT_EQ(survivor.asked.writes, 2) << survivor.rank;
    EXPECT_EQ(survivor.asked.reads, 1) << survivor.rank;
    EXPECT_LE(survivor.asked.all, 7) << survivor.rank;
  }
  // The groups are new, and so are the rings of those whose ranks share memory.
  const std::string transport = GetParam();
  const int by_rings = transport == "shm" || transport == "auto" ? 1 : 0;
  for (const Report& report : reports) EXPECT_EQ(report.by_rings, by_rings) << report.rank;
  // All links that survivors open lead to the new process.
  EXPECT_GT(fresh.opened, 0);
  EXPECT_GT(opened_by_survivors, 0);
  EXPECT_EQ(opened_by_survivors, fresh.accepted);
}

TEST_P(RejoinTest, AProcessOnAnotherHostIsKnownToBeThere) {
  if (std::string(GetParam()) == "shm") GTEST_SKIP() << "shared memory is within a host";
  const std::vector<Report> reports = Job(With(), "there").Reports();
  ASSERT_EQ(reports.size(), static_cast<size_t>(kRanks));
  for (const Report& report : reports) EXPECT_EQ(report.host_of_victim, 1) << report.rank;
}

TEST(RejoinableTest, RanksThatThereAreNotAreRefused) {
  MemoryStore store;
  RejoinableOptions options;
  options.rank = Rank(0);
  options.store = &store;
  options.rejoins = true;
  const auto endpoint = CreateRejoinable(options);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  Rejoinable& rejoinable = AsRejoinable(**endpoint);
  EXPECT_TRUE(rejoinable.Forget({}).ok());
  int64_t epoch = 0;
  for (const int rank : {-1, 1, 99}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(rejoinable.Forget({rank}))) << rank;
    // As the store has it of a replaced rank: an empty note, and its record.
    MemberRecord record;
    record.address = "=00 =00 costs place";
    ASSERT_TRUE(store
                    .Set(absl::StrCat("job/replaced/", ++epoch),
                         std::string(4, '\0') + EncodeReplacement({{rank, record}}))
                    .ok());
    const absl::Status status = rejoinable.Rejoin({.epoch = epoch, .replaced = {rank}});
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat("rank ", rank)), absl::string_view::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Transport, RejoinTest, testing::Values("shm", "tcp", "multipath", "auto"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weft::collectives
