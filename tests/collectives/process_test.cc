// Ranks that are processes, and die.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/failure.h"
#include "tests/collectives/processes.h"

namespace weft::collectives {
namespace {

// A bound on hangs. collective.timeout is longer where a death is to be noticed, so that a rank
// which learns of it by a timeout alone ends too late.
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kNoTimeout[] = "collective.timeout=1h";

// With a communicator of all ranks.
RankBody InWorld(std::function<bool(Communicator&)> body) {
  return [body = std::move(body)](const std::shared_ptr<Endpoint>& endpoint) {
    auto world = Communicator::Create(endpoint, "world", AllRanks(endpoint->world_size()));
    return world.ok() && body(**world);
  };
}

class ProcessTest : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With() const { return {absl::StrCat("transport=", GetParam()), kNoTimeout}; }
};

TEST_P(ProcessTest, ReduceAcrossProcesses) {
  Processes job(
      4, With(), InWorld([](Communicator& world) {
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
      }));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(job.Wait(rank, kPatience), 0);
}

TEST_P(ProcessTest, AKilledRankIsNamedOnAllOthers) {
  for (const size_t count : {100, 500000}) {
    Processes job(
        4, With(), InWorld([&](Communicator& world) {
          std::vector<float> data(count);
          if (world.rank() == GroupRank(2)) {
            for (int i = 0; i < 5; ++i) {
              if (!world
                       .AllReduce(data.data(), data.data(), count, DataType::kFloat32,
                                  ReduceOp::kSum)
                       ->Wait()
                       .ok()) {
                return false;
              }
            }
            kill(getpid(), SIGKILL);
          }
          for (int i = 0; i < 1000000; ++i) {
            const absl::Status status =
                world
                    .AllReduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum)
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
        }));
    EXPECT_EQ(job.Wait(2, kPatience), SIGKILL);
    for (int rank : {0, 1, 3}) EXPECT_EQ(job.Wait(rank, kPatience), 0) << rank;
  }
}

// Small calls of a host's ranks: rank 2 ends after `sums` of them, and after it has started another
// where it does; so before, while and after the group's rings are opened. The others have to fail
// with `code`, and to name it.
void ExpectNamed(int sums, bool starts, int signal, absl::StatusCode code) {
  // One that stops is named when a call's time is up, in which all calls before it are to end.
  const char* const timeout = signal == SIGSTOP ? "collective.timeout=4s" : kNoTimeout;
  Processes job(3, {"transport=shm", timeout}, InWorld([&](Communicator& world) {
                  std::vector<float> data(10);
                  const auto sum = [&] {
                    return world.AllReduce(data.data(), data.data(), data.size(),
                                           DataType::kFloat32, ReduceOp::kSum);
                  };
                  if (world.rank() == GroupRank(2)) {
                    for (int i = 0; i < sums; ++i) {
                      if (!sum()->Wait().ok()) return false;
                    }
                    const WorkPtr last = starts ? sum() : nullptr;
                    kill(getpid(), signal);
                  }
                  absl::Status status;
                  while (status.ok()) status = sum()->Wait();
                  if (status.code() == code && FailureOf(status).rank == 2) return true;
                  std::fprintf(stderr, "rank %d: %s\n", world.rank().value(),
                               status.ToString().c_str());
                  return false;
                }));
  for (int rank : {0, 1}) {
    EXPECT_EQ(job.Wait(rank, kPatience), 0) << "rank " << rank << ", signal " << signal << " after "
                                            << sums << " calls, starts " << starts;
  }
}

TEST(SmallCallsTest, ARankThatDiesOrStopsAtAnyTimeIsNamed) {
  for (const int sums : {0, 3}) {
    for (const bool starts : {false, true}) {
      ExpectNamed(sums, starts, SIGKILL, absl::StatusCode::kUnavailable);
      ExpectNamed(sums, starts, SIGSTOP, absl::StatusCode::kDeadlineExceeded);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ProcessTest, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weft::collectives
