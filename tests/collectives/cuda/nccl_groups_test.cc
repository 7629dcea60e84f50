// Which calls of NCCL make a job's communicators, with which arguments, on several versions of it:
// scripted libraries (scripted_nccl.cc), loaded as NCCL is.
#include "collectives/cuda/nccl_groups.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/cuda/nccl_entry.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "topology/job/mesh_text.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

// One scripted NCCL, and a maker on it.
class ScriptedNccl {
 public:
  explicit ScriptedNccl(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    missing_ = entry_.Find(library_);
    Begin(0);
  }

  bool loaded() const { return library_ != nullptr && missing_ == nullptr; }
  void Begin(int result) { Function<void(int)>("ScriptedBegin")(result); }
  std::string Calls() const { return Function<const char*()>("ScriptedCalls")(); }
  int version() const { return entry_.version(); }

  NcclMaker Maker() {
    NcclMaker maker;
    maker.init = [this](int size, int rank, const std::vector<std::string>& ids) {
      std::string all;
      for (const std::string& id : ids) all += id;
      WeftNcclCommunicator* made = nullptr;
      const char* call = nullptr;
      int result = entry_.Init(&made, size, rank,
                               reinterpret_cast<const uint8_t(*)[kWeftNcclIdBytes]>(all.data()),
                               static_cast<int>(ids.size()), &call);
      return Outcome(made, result, call);
    };
    if (entry_.splits()) {
      maker.split = [this](WeftNcclCommunicator* parent, int color, int key) {
        WeftNcclCommunicator* made = nullptr;
        const char* call = nullptr;
        int result = entry_.Split(parent, color, key, &made, &call);
        return Outcome(made, result, call);
      };
    }
    maker.abort = [this](WeftNcclCommunicator* made) { aborted_.push_back(made); };
    return maker;
  }
  const std::vector<WeftNcclCommunicator*>& aborted() const { return aborted_; }

 private:
  template <typename F>
  F* Function(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }
  static absl::StatusOr<WeftNcclCommunicator*> Outcome(WeftNcclCommunicator* made, int result,
                                                       const char* call) {
    if (result == 0) return made;
    return absl::InternalError(absl::StrCat(call, " returned ", result));
  }

  void* const library_;
  const char* missing_ = "a library";
  NcclEntry entry_;
  std::vector<WeftNcclCommunicator*> aborted_;
};

// What the exchange brought to `rank`: made by all ranks of the layout, over a store. The id that
// rank r makes k-th is the byte 10 r + k, 128 times.
absl::StatusOr<JobGroups> Exchange(const std::string& layout, int rank, int ranks_per_root) {
  WEFT_ASSIGN_OR_RETURN(auto server, StoreServer::Start({}));
  WEFT_ASSIGN_OR_RETURN(topology::Mesh mesh, topology::ParseMesh(layout));
  std::vector<absl::StatusOr<JobGroups>> jobs(static_cast<size_t>(mesh.ranks()),
                                              absl::UnknownError("not made"));
  std::vector<std::thread> threads;
  threads.reserve(jobs.size());
  for (int self = 0; self < mesh.ranks(); ++self) {
    threads.emplace_back([&, self] {
      StoreClientOptions client;
      client.address = server->address();
      auto store = StoreClient::Connect(client);
      if (!store.ok()) {
        jobs[static_cast<size_t>(self)] = store.status();
        return;
      }
      FastInitOptions options;
      options.mesh = mesh;
      options.rank = self;
      options.ranks_per_root = ranks_per_root;
      options.timeout = absl::Minutes(1);
      options.make_unique_id = [next = 10 * self]() mutable -> absl::StatusOr<std::string> {
        return std::string(kWeftNcclIdBytes, static_cast<char>(next++));
      };
      jobs[static_cast<size_t>(self)] = CreateGroups(**store, options);
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& job : jobs) WEFT_RETURN_IF_ERROR(job.status());
  return jobs[static_cast<size_t>(rank)];
}

class NcclGroupsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto job = Exchange("tp2,dp4", /*rank=*/5, /*ranks_per_root=*/2);
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }
  JobGroups job_;
};

TEST_F(NcclGroupsTest, WithNeitherEachGroupComesFromItsFirstId) {
  ScriptedNccl nccl(SCRIPTED_NCCL_217);
  ASSERT_TRUE(nccl.loaded());
  EXPECT_EQ(nccl.version(), 21701);
  auto* world = reinterpret_cast<WeftNcclCommunicator*>(99);
  ASSERT_TRUE(MakeCommunicators(nccl.Maker(), job_, world).ok());
  // Rank 5 is second in {4, 5} and third in {1, 3, 5, 7}; 4 and 1 make their first ids.
  EXPECT_EQ(nccl.Calls(),
            "InitRankConfig size=2 id=40 rank=1 config=default\n"
            "InitRankConfig size=4 id=10 rank=2 config=default\n");
}

TEST_F(NcclGroupsTest, BeforeConfigurationsThereIsInitRank) {
  ScriptedNccl nccl(SCRIPTED_NCCL_212);
  ASSERT_TRUE(nccl.loaded());
  ASSERT_TRUE(MakeCommunicators(nccl.Maker(), job_).ok());
  EXPECT_EQ(nccl.Calls(), "InitRank size=2 id=40 rank=1\nInitRank size=4 id=10 rank=2\n");
}

TEST_F(NcclGroupsTest, TheWorldIsSplitWhereNcclSplits) {
  ScriptedNccl nccl(SCRIPTED_NCCL_219);
  ASSERT_TRUE(nccl.loaded());
  auto* world = reinterpret_cast<WeftNcclCommunicator*>(99);
  auto made = MakeCommunicators(nccl.Maker(), job_, world);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(nccl.Calls(),
            "Split parent=99 color=4 key=1 config=default\n"
            "Split parent=99 color=1 key=2 config=default\n");
  EXPECT_EQ(made->size(), 2);
  EXPECT_NE((*made)[0], (*made)[1]);
}

TEST_F(NcclGroupsTest, WithoutAWorldSplittingIsNoWay) {
  ScriptedNccl nccl(SCRIPTED_NCCL_219);
  ASSERT_TRUE(nccl.loaded());
  ASSERT_TRUE(MakeCommunicators(nccl.Maker(), job_).ok());
  EXPECT_EQ(nccl.Calls(),
            "InitRankConfig size=2 id=40 rank=1 config=default\n"
            "InitRankConfig size=4 id=10 rank=2 config=default\n");
}

TEST_F(NcclGroupsTest, AllIdsOfAGroupGoToTheScalableCall) {
  ScriptedNccl nccl(SCRIPTED_NCCL_228);
  ASSERT_TRUE(nccl.loaded());
  ASSERT_TRUE(MakeCommunicators(nccl.Maker(), job_).ok());
  // Blocks of two: {1, 3} and {5, 7}. Ranks 1 and 5 are no roots of their tp groups.
  EXPECT_EQ(nccl.Calls(),
            "InitRankConfig size=2 id=40 rank=1 config=default\n"
            "InitRankScalable size=4 rank=2 ids=10,50 config=default\n");
}

TEST_F(NcclGroupsTest, AWorldFromItsOwnExchangeIsMadeScalablyAndThenSplit) {
  ScriptedNccl nccl(SCRIPTED_NCCL_228);
  ASSERT_TRUE(nccl.loaded());
  auto world = Exchange("dp8", 5, 4);
  ASSERT_TRUE(world.ok()) << world.status();
  auto whole = MakeCommunicators(nccl.Maker(), *world);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(MakeCommunicators(nccl.Maker(), job_, (*whole)[0]).ok());
  EXPECT_EQ(nccl.Calls(),
            "InitRankScalable size=8 rank=5 ids=0,40 config=default\n"
            "Split parent=1 color=4 key=1 config=default\n"
            "Split parent=1 color=1 key=2 config=default\n");
}

TEST_F(NcclGroupsTest, GroupsOfOneRankNeedNoCommunicator) {
  ScriptedNccl nccl(SCRIPTED_NCCL_228);
  ASSERT_TRUE(nccl.loaded());
  auto job = Exchange("tp1,dp2", 1, 256);
  ASSERT_TRUE(job.ok()) << job.status();
  auto made = MakeCommunicators(nccl.Maker(), *job);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)[0], nullptr);
  // Rank 0 makes an id for its tp group of one first, then that of dp.
  EXPECT_EQ(nccl.Calls(), "InitRankConfig size=2 id=1 rank=1 config=default\n");
}

TEST_F(NcclGroupsTest, AFailureNamesCallAndGroupAndAbortsWhatWasMade) {
  ScriptedNccl nccl(SCRIPTED_NCCL_228);
  ASSERT_TRUE(nccl.loaded());
  NcclMaker maker = nccl.Maker();
  auto init = maker.init;
  maker.init = [&](int size, int rank, const std::vector<std::string>& ids) {
    if (ids.size() > 1) nccl.Begin(5);  // ncclInvalidUsage
    return init(size, rank, ids);
  };
  auto made = MakeCommunicators(maker, job_);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().ToString(), HasSubstr("ncclCommInitRankScalable returned 5"));
  EXPECT_THAT(made.status().ToString(), HasSubstr("group 1 of data"));
  EXPECT_EQ(nccl.aborted().size(), 1);
}

TEST_F(NcclGroupsTest, IdsThatAreNoneAreRefusedBeforeNcclSeesThem) {
  ScriptedNccl nccl(SCRIPTED_NCCL_228);
  ASSERT_TRUE(nccl.loaded());
  job_.groups[0].unique_ids = {"short"};
  auto made = MakeCommunicators(nccl.Maker(), job_);
  EXPECT_THAT(made.status().ToString(), HasSubstr("a unique id of 5 bytes"));
  job_.groups[0].unique_ids.clear();
  made = MakeCommunicators(nccl.Maker(), job_);
  EXPECT_THAT(made.status().ToString(), HasSubstr("make_unique_id"));
  EXPECT_EQ(nccl.Calls(), "");
}

}  // namespace
}  // namespace weft::collectives
