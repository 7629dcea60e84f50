// RDMA devices read and write the caller's memory as it is mapped during an operation, whatever lay
// at its addresses in an operation before: over verbs, on scripted devices, which keep the pages
// that were registered. The ranks are threads, of one host that shares no memory. With
// WEFT_TEST_RDMA=rxe0 on a real device instead (tools/dev test roce). And what else differs over
// verbs: small messages of calls with a root.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/keep_registered.h"
#include "tests/collectives/job.h"
#include "tests/net/verbs/remapped.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::collectives {
namespace {

using net::Remapped;
using net::ScriptedFabric;

constexpr size_t kCount = 64 << 10;  // floats
constexpr size_t kBytes = kCount * sizeof(float);

const char* RealDevice() { return std::getenv("WEFT_TEST_RDMA"); }

SettingPairs OverVerbs() {
  const char* real = RealDevice();
  return {"transport=verbs", "collective.timeout=30s",
          absl::StrCat("verbs.devices=", real == nullptr ? "scripted" : absl::StrCat("=", real))};
}

// Of the library that lies beside this program, which the endpoints have loaded.
ScriptedFabric& Fabric() {
  const auto library =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libweft-verbs.so";
  void* module = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(module, nullptr) << library;
  ScriptedFabric* fabric = nullptr;
  auto find = reinterpret_cast<void (*)(ScriptedFabric**)>(dlsym(module, "weft_scripted_fabric"));
  find(&fabric);
  dlclose(module);
  return *fabric;
}

// Sums `count` floats of all ranks in place, which differ by round, and looks at them.
void ReduceInPlace(Communicator& world, std::byte* data, size_t count, int round) {
  auto* values = reinterpret_cast<float*>(data);
  const int rank = world.rank().value();
  float want = 0;
  for (int r = 0; r < world.size(); ++r) want += static_cast<float>(100 * round + r + 1);
  std::fill_n(values, count, static_cast<float>(100 * round + rank + 1));
  const absl::Status status =
      world.AllReduce(values, values, count, DataType::kFloat32, ReduceOp::kSum)->Wait();
  ASSERT_TRUE(status.ok()) << status;
  const auto wrong = std::find_if(values, values + count, [&](float v) { return v != want; });
  ASSERT_EQ(wrong, values + count) << "round " << round << ": value " << wrong - values << " of "
                                   << count << " is " << *wrong << ", not " << want;
}

TEST(Registrations, ACollectiveRepeatedOnMemoryMappedAnewIsRight) {
  for (int ranks : {2, 3}) {
    RunWorld(ranks, OverVerbs(), [](Communicator& world) {
      Remapped memory(kBytes);
      for (int round = 0; round < 6; ++round) {
        ReduceInPlace(world, memory.data(), kCount, round);
        memory.MapAnew();
      }
    });
  }
}

// Each kind of call has executions of its own, which are kept for the next of that kind.
TEST(Registrations, OtherCallsOnPartsOfMemoryMappedAnewAreRight) {
  RunWorld(2, OverVerbs(), [](Communicator& world) {
    Remapped memory(kBytes);
    ReduceInPlace(world, memory.data(), kCount, 0);
    for (size_t parts : {2, 4, 8}) {
      memory.MapAnew();
      const size_t count = kCount / parts;
      ReduceInPlace(world, memory.data() + kBytes / 2, count, static_cast<int>(parts));
      // Gathered into the rest.
      auto* values = reinterpret_cast<float*>(memory.data());
      const auto rank = static_cast<float>(world.rank().value());
      std::vector<float> mine(kCount / 8, rank + static_cast<float>(parts));
      const absl::Status status =
          world.AllGather(mine.data(), values, mine.size(), DataType::kFloat32)->Wait();
      ASSERT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < 2 * mine.size(); ++i) {
        ASSERT_EQ(values[i], static_cast<float>(i / mine.size() + parts)) << i;
      }
    }
  });
}

// Works are often held longer than their buffers.
TEST(Registrations, MessagesOfMemoryMappedAnewAreRightWhileEarlierWorksAreHeld) {
  RunWorld(2, OverVerbs(), [](Communicator& world) {
    Remapped memory(kBytes);
    std::vector<WorkPtr> works;
    for (int round = 1; round < 5; ++round) {
      const GroupRank peer(1 - world.rank().value());
      if (world.rank().value() == 0) {
        std::memset(memory.data(), round, kBytes);
        works.push_back(world.Send(memory.data(), kBytes, peer, 3));
      } else {
        works.push_back(world.Receive(memory.data(), kBytes, peer, 3));
      }
      const absl::Status status = works.back()->Wait();
      ASSERT_TRUE(status.ok()) << status;
      const auto wrong = std::find_if(memory.data(), memory.data() + kBytes, [&](std::byte b) {
        return b != static_cast<std::byte>(round);
      });
      ASSERT_EQ(wrong, memory.data() + kBytes) << "round " << round;
      memory.MapAnew();
    }
  });
}

TEST(Registrations, OfMemoryThatTheCallerKeepsEndWithHisPromise) {
  RunRanks(2, OverVerbs(), [&](const std::shared_ptr<Endpoint>& endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
    Remapped memory(kBytes);
    for (int round = 0; round < 4; ++round) {
      std::shared_ptr<void> kept = KeepRegistered(endpoint, memory.data(), kBytes);
      ReduceInPlace(*world, memory.data(), kCount, 2 * round);
      ReduceInPlace(*world, memory.data() + kBytes / 2, kCount / 2, 2 * round + 1);
      // The same once more is no promise of its own.
      KeepRegistered(endpoint, memory.data(), kBytes).reset();
      ReduceInPlace(*world, memory.data(), kCount, 2 * round);
      // A promise ends before the memory does.
      kept.reset();
      memory.MapAnew();
    }
  });
}

TEST(Registrations, OfMemoryThatTheEndpointGaveEndWithIt) {
  std::atomic<int> repeated{0};
  RunRanks(2, OverVerbs(), [&](const std::shared_ptr<Endpoint>& endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
    std::set<std::byte*> seen;
    for (int round = 0; round < 8; ++round) {
      const std::shared_ptr<std::byte> memory = endpoint->Allocate(kBytes);
      if (!seen.insert(memory.get()).second) ++repeated;
      ReduceInPlace(*world, memory.get(), kCount, round);
    }
  });
  EXPECT_GT(repeated, 0) << "else nothing was tested: no address came again";
}

TEST(Registrations, StayBetweenOperationsForMemoryThatIsKeptAlone) {
  if (RealDevice() != nullptr) GTEST_SKIP() << "nobody counts the calls of a real device";
  std::atomic<int> calls{0};
  RunRanks(2, OverVerbs(), [&](const std::shared_ptr<Endpoint>& endpoint) {
    auto world = *Communicator::Create(endpoint, "world", AllRanks(2));
    const auto given = endpoint->Allocate(kBytes);
    std::vector<std::byte> other(kBytes);
    const bool first = world->rank().value() == 0;
    const auto meet = [&] { ASSERT_TRUE(world->Barrier()->Wait().ok()); };
    // How many calls of both ranks four operations make.
    const auto calls_of = [&](std::byte* data) {
      meet();
      if (first) calls = 0;
      meet();
      for (int round = 0; round < 4; ++round) ReduceInPlace(*world, data, kCount, round);
      meet();
      const int made = calls;
      meet();
      return made;
    };
    ReduceInPlace(*world, given.get(), kCount, 0);  // the links and their rings
    ReduceInPlace(*world, other.data(), kCount, 0);
    if (first) {
      Fabric().set_on_call([&](const std::string& call, const std::string&) {
        if (call == "register") ++calls;
        return absl::OkStatus();
      });
    }
    EXPECT_EQ(calls_of(given.get()), 0);
    auto kept = KeepRegistered(endpoint, other.data(), kBytes);
    ReduceInPlace(*world, other.data(), kCount, 0);
    EXPECT_EQ(calls_of(other.data()), 0);
    kept.reset();
    EXPECT_EQ(calls_of(other.data()), 2 * 2 * 4) << "ranks, devices, operations";
    if (first) Fabric().set_on_call(nullptr);
  });
  EXPECT_EQ(Fabric().registrations(), 0u);
}

// ---- Calls with a root

// Each rank takes itself for the root, so that neither expects a message. (Between hosts, as within
// one: mismatch_test.)
TEST(VerbsRoots, ThatDifferAreFound) {
  RunWorld(2, OverVerbs(), [](Communicator& world) {
    float value = 1;
    ASSERT_TRUE(world.Barrier()->Wait().ok());
    const absl::Status status =
        world.Broadcast(&value, &value, 1, DataType::kFloat32, world.rank())->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find("root 1"), absl::string_view::npos) << status;
  });
}

TEST(VerbsRoots, SmallCallsRegisterNothing) {
  if (RealDevice() != nullptr) GTEST_SKIP() << "nobody counts the calls of a real device";
  std::atomic<int> calls{0};
  RunWorld(2, OverVerbs(), [&](Communicator& world) {
    constexpr size_t kSmall = 256;  // floats
    std::vector<float> values(kSmall);
    const GroupRank root(0);
    const auto meet = [&] { ASSERT_TRUE(world.Barrier()->Wait().ok()); };
    const auto call = [&](int round) {
      std::fill(values.begin(), values.end(), static_cast<float>(world.rank() == root ? round : 0));
      ASSERT_TRUE(world.Broadcast(values.data(), values.data(), kSmall, DataType::kFloat32, root)
                      ->Wait()
                      .ok());
      ASSERT_EQ(std::count(values.begin(), values.end(), static_cast<float>(round)), kSmall);
      const absl::Status reduced = world
                                       .Reduce(values.data(), values.data(), kSmall,
                                               DataType::kFloat32, ReduceOp::kSum, root)
                                       ->Wait();
      ASSERT_TRUE(reduced.ok()) << reduced;
      if (world.rank() != root) return;
      ASSERT_EQ(std::count(values.begin(), values.end(), static_cast<float>(2 * round)), kSmall);
    };
    call(1);  // the links and their rings
    meet();
    if (world.rank() == root) {
      Fabric().set_on_call([&](const std::string& name, const std::string&) {
        if (name == "register") ++calls;
        return absl::OkStatus();
      });
    }
    meet();
    for (int round = 2; round < 6; ++round) call(round);
    meet();
    if (world.rank() == root) Fabric().set_on_call(nullptr);
  });
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace weft::collectives
