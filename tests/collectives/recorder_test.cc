// What a job's processes leave in their rings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/record_files.h"
#include "tests/collectives/job.h"
#include "tests/scratch_folder.h"

namespace weft::collectives {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

struct Ring {
  RecordProcess process;
  std::vector<CallRecord> called, done;
  std::vector<FlowRecord> flows;
  std::vector<std::string> names;  // of `done`
};

std::map<int, Ring> ReadAll(const std::string& folder) {
  std::map<int, Ring> rings;
  for (const std::string& file : RecordFilesIn(folder)) {
    auto reader = RecordReader::Open(file);
    EXPECT_TRUE(reader.ok()) << reader.status();
    Ring ring{.process = (*reader)->process()};
    for (const Record& record : (*reader)->Read()) {
      if (record.kind() == RecordKind::kCall) ring.called.push_back(record.As<CallRecord>());
      if (record.kind() == RecordKind::kFlow) ring.flows.push_back(record.As<FlowRecord>());
      if (record.kind() != RecordKind::kDone) continue;
      ring.done.push_back(record.As<CallRecord>());
      ring.names.push_back((*reader)->Name(ring.done.back().name));
    }
    rings[ring.process.rank] = ring;
  }
  return rings;
}

TEST(Recorder, WritesEveryCallAndItsEndByDefault) {
  ScratchFolder folder;
  RunWorld(2, {"records.folder=" + (folder / "rings"), "records.keep=true"},
           [](Communicator& world) {
             std::vector<float> data(1000, 1.0f);
             EXPECT_TRUE(world
                             .AllReduce(data.data(), data.data(), data.size(), DataType::kFloat32,
                                        ReduceOp::kSum)
                             ->Wait()
                             .ok());
             const GroupRank other(1 - world.rank().value());
             const bool sends = world.rank().value() == 0;
             WorkPtr message = sends ? world.Send(data.data(), 64, other, 9)
                                     : world.Receive(data.data(), 64, other, 9);
             EXPECT_TRUE(message->Wait().ok());
             EXPECT_TRUE(world.Barrier()->Wait().ok());
           });
  const std::map<int, Ring> rings = ReadAll(folder / "rings");
  ASSERT_THAT(rings, SizeIs(2));
  uint64_t check = 0;
  for (const auto& [rank, ring] : rings) {
    EXPECT_EQ(ring.process.world_size, 2);
    EXPECT_THAT(ring.process.lines, Contains("group world 0-1"));
    ASSERT_THAT(ring.called, SizeIs(3));
    ASSERT_THAT(ring.names, ElementsAre("all_reduce", rank == 0 ? "send" : "receive", "barrier"));
    const CallRecord& reduce = ring.done[0];
    EXPECT_EQ(reduce.bytes, 4000u);
    EXPECT_EQ(reduce.count, 1000u);
    EXPECT_EQ(reduce.sequence, 0u);
    EXPECT_GT(reduce.end_ns, reduce.start_ns);
    EXPECT_EQ(reduce.start_ns, ring.called[0].start_ns);
    EXPECT_EQ(ring.done[1].peer, 1 - rank);
    EXPECT_EQ(ring.done[1].sequence, 9u);
    EXPECT_EQ(ring.done[2].sequence, 1u);
    if (check == 0) check = reduce.check;
    EXPECT_EQ(reduce.check, check);
  }
}

// What the ring of a rank says while another does not come.
TEST(Recorder, SamplesFlowsThatStandStill) {
  ScratchFolder folder;
  std::mutex mutex;
  RunRanks(
      2, {"records.folder=" + (folder / "rings"), "records.keep=true"},
      [&](std::shared_ptr<Endpoint> endpoint) {
        const int rank = endpoint->rank().value();
        auto world = Communicator::Create(endpoint, "world", AllRanks(2));
        ASSERT_TRUE(world.ok());
        ASSERT_TRUE((*world)->Barrier()->Wait().ok());
        std::vector<std::byte> data(1 << 20);
        if (rank == 0) {
          WorkPtr send = (*world)->Send(data.data(), data.size(), GroupRank(1), 4);
          while (absl::IsDeadlineExceeded(send->Wait(absl::Milliseconds(50)))) {
            const std::map<int, Ring> rings = ReadAll(folder / "rings");
            bool told = false;
            for (const FlowRecord& flow : rings.at(0).flows) {
              told |= flow.sends == 1 && flow.peer == 1 && flow.waiting > 0 && flow.stuck_ms > 0;
            }
            if (!told) continue;
            uint32_t word = 1;
            ASSERT_TRUE((*world)->Send(&word, sizeof(word), GroupRank(1), 5)->Wait().ok());
            break;
          }
          ASSERT_TRUE(send->Wait().ok());
        } else {
          uint32_t word = 0;
          ASSERT_TRUE((*world)->Receive(&word, sizeof(word), GroupRank(0), 5)->Wait().ok());
          ASSERT_TRUE((*world)->Receive(data.data(), data.size(), GroupRank(0), 4)->Wait().ok());
        }
        bool sends = false;
        for (const Endpoint::LinkCounters& link : endpoint->Counters()) {
          sends |= link.sends && link.counters.bytes_done >= data.size();
        }
        EXPECT_EQ(sends, rank == 0);
      });
}

// A rank that ends with a call under way takes its own ring along, as it meant to; those that lose
// their group by it leave theirs, so that they are told apart afterwards.
TEST(Recorder, KeepsTheRingsOfRanksThatLoseTheirGroup) {
  ScratchFolder folder;
  RunRanks(3, {"records.folder=" + (folder / "rings")}, [](std::shared_ptr<Endpoint> endpoint) {
    auto world = Communicator::Create(endpoint, "world", AllRanks(3));
    ASSERT_TRUE(world.ok());
    if (endpoint->rank().value() == 0) {
      ASSERT_TRUE((*world)->Barrier()->Wait().ok());
      uint32_t word = 0;
      const WorkPtr never = (*world)->Receive(&word, sizeof(word), GroupRank(1), 4);
      world->reset();
      EXPECT_TRUE(absl::IsCancelled(never->Wait()));
      return;
    }
    // The first may be over here before rank 0 goes, or not.
    absl::Status status;
    for (int call = 0; status.ok() && call < 2; ++call) status = (*world)->Barrier()->Wait();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
  });
  const std::map<int, Ring> rings = ReadAll(folder / "rings");
  EXPECT_EQ(rings.count(0), 0u);
  ASSERT_THAT(rings, SizeIs(2));
  for (const auto& [rank, ring] : rings) EXPECT_TRUE(ring.process.failed) << rank;
}

TEST(Recorder, IsSwitchedOffByASetting) {
  ScratchFolder folder;
  RunRanks(2,
           {"records.folder=" + (folder / "rings"), "records.keep=true", "records.enabled=false"},
           [](std::shared_ptr<Endpoint> endpoint) { EXPECT_EQ(endpoint->records(), nullptr); });
  EXPECT_THAT(RecordFilesIn(folder / "rings"), IsEmpty());
}

// A folder that cannot be written to takes the records, not the job.
TEST(Recorder, LeavesAJobAloneThatCannotWrite) {
  RunWorld(2, {"records.folder=/proc/none"},
           [](Communicator& world) { EXPECT_TRUE(world.Barrier()->Wait().ok()); });
}

}  // namespace
}  // namespace weft::collectives
