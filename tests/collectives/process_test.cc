// Ranks that are processes, and die.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/clock.h"
#include "base/failure.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

// What a rank's process does: exit status 0 means that its checks held.
using Body = std::function<bool(Communicator&)>;

bool RunAsProcess(int rank, int size, const std::string& address, const SettingPairs& pairs,
                  const Body& body) {
  StoreClientOptions client;
  client.address = address;
  client.name = absl::StrCat("rank ", rank);
  auto store = StoreClient::Connect(client);
  if (!store.ok()) return false;
  EndpointOptions options;
  options.rank = Rank(rank);
  options.world_size = size;
  options.store = store->get();
  options.settings = SettingsOf(pairs);
  auto endpoint = Endpoint::Create(std::move(options));
  if (!endpoint.ok()) return false;
  auto world = Communicator::Create(*endpoint, "world", AllRanks(size));
  return world.ok() && body(**world);
}

class Processes {
 public:
  Processes(int size, const SettingPairs& pairs, const Body& body) {
    // The server's thread must not be forked: children learn its address through a pipe.
    std::array<int, 2> tell;
    EXPECT_EQ(pipe(tell.data()), 0);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        close(tell[1]);
        char address[64] = {};
        const bool told = read(tell[0], address, sizeof(address)) == sizeof(address);
        _exit(told && RunAsProcess(rank, size, address, pairs, body) ? 0 : 1);
      }
      children_.push_back(child);
    }
    server_ = *StoreServer::Start({});
    std::string address = server_->address();
    address.resize(64);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(write(tell[1], address.data(), address.size()), 64);
    }
    close(tell[0]);
    close(tell[1]);
  }
  ~Processes() {
    for (pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    }
  }
  void Kill(int rank) { kill(children_[static_cast<size_t>(rank)], SIGKILL); }
  // The wait status; -1 if it has not ended in time.
  int Wait(int rank, absl::Duration limit) {
    pid_t& child = children_[static_cast<size_t>(rank)];
    const absl::Time end = absl::Now() + limit;
    while (absl::Now() < end) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) == child) {
        child = 0;
        return status;
      }
      poll(nullptr, 0, 2);
    }
    return -1;
  }

 private:
  std::vector<pid_t> children_;
  std::unique_ptr<StoreServer> server_;
};

class ProcessTest : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With() const { return {absl::StrCat("transport=", GetParam())}; }
};

TEST_P(ProcessTest, ReduceAcrossProcesses) {
  Processes job(4, With(), [](Communicator& world) {
    for (size_t count : {1, 1000, 400000}) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        std::vector<int64_t> data(count, world.rank().value() + repeat);
        if (!world.AllReduce(data.data(), data.data(), count, DataType::kInt64, ReduceOp::kSum)
                 ->Wait()
                 .ok()) {
          return false;
        }
        for (int64_t value : data) {
          if (value != 6 + 4 * repeat) return false;
        }
      }
    }
    return true;
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(job.Wait(rank, absl::Seconds(30)), 0);
}

TEST_P(ProcessTest, AKilledRankIsNamedOnAllOthers) {
  for (const size_t count : {100, 500000}) {
    Processes job(4, With(), [&](Communicator& world) {
      std::vector<float> data(count);
      if (world.rank() == GroupRank(2)) {
        for (int i = 0; i < 5; ++i) {
          if (!world.AllReduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum)
                   ->Wait()
                   .ok()) {
            return false;
          }
        }
        kill(getpid(), SIGKILL);
      }
      for (int i = 0; i < 1000000; ++i) {
        const absl::Status status =
            world.AllReduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum)
                ->Wait();
        if (status.ok()) continue;
        const Failure failure = FailureOf(status);
        const bool known = failure.rank == 2 && (failure.scope == FailureScope::kProcess ||
                                                 failure.scope == FailureScope::kConnection);
        if (known && absl::StrContains(status.message(), "rank 2 is gone")) return true;
        std::fprintf(stderr, "rank %d: %s\n", world.rank().value(), status.ToString().c_str());
        return false;
      }
      return false;
    });
    EXPECT_EQ(job.Wait(2, absl::Seconds(30)), SIGKILL);
    const absl::Time killed = absl::Now();
    for (int rank : {0, 1, 3}) EXPECT_EQ(job.Wait(rank, absl::Seconds(20)), 0) << rank;
    EXPECT_LT(absl::Now() - killed, absl::Seconds(15));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ProcessTest, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weft::collectives
