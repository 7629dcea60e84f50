#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/random.h"
#include "base/read_file.h"
#include "tests/trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

TEST_F(CheckpointTest, GivesBackTheWholeState) {
  Write(1000, 3);
  EXPECT_EQ(Path(1000), folder_ / "step-00001000");
  EXPECT_TRUE(fs::exists(Path(1000) + "/rank-00002-of-00003.safetensors"));
  EXPECT_EQ(std::distance(fs::directory_iterator(Path(1000)), {}), 4);  // nothing but these
  auto reader = Open(1000);
  EXPECT_EQ(Compare(*reader, 1000), "");
  const Manifest& manifest = reader->manifest();
  EXPECT_EQ(manifest.seed, 7U);
  EXPECT_EQ(manifest.world_size, 3);
  EXPECT_EQ(manifest.states.at("scheduler"), std::string("\0\x01\xFF", 3));
  EXPECT_EQ(manifest.config_hash, HashConfig("[train]\nsteps = 10\n"));
}

TEST_F(CheckpointTest, IsReadByAnyNumberOfRanks) {
  for (int written : {1, 4, 7}) {
    Write(written, written);
    auto reader = Open(written);
    for (int read : {1, 2, 3, 5, 16}) {
      for (const BufferKind& kind : kBuffers) {
        for (int rank = 0; rank < read; ++rank) {
          int64_t begin = kind.elements * rank / read;
          int64_t end = kind.elements * (rank + 1) / read;
          std::vector<std::byte> bytes(static_cast<size_t>((end - begin) * SizeOf(kind.dtype)));
          absl::Status status = reader->Read(kind.name, begin, end, absl::MakeSpan(bytes));
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_EQ(bytes, BytesOf(kind, written, begin, end)) << written << " -> " << read;
        }
      }
    }
  }
}

TEST_F(CheckpointTest, ReadsRangesAcrossBordersAndEmptyOnes) {
  Write(1, 4);
  auto reader = Open(1);
  const BufferKind& kind = kBuffers[1];
  Random random(5);
  for (int round = 0; round < 100; ++round) {
    auto begin = static_cast<int64_t>(random.Below(kind.elements + 1));
    auto end = begin + static_cast<int64_t>(random.Below(kind.elements - begin + 1));
    std::vector<std::byte> bytes(static_cast<size_t>((end - begin) * 4));
    ASSERT_TRUE(reader->Read(kind.name, begin, end, absl::MakeSpan(bytes)).ok());
    ASSERT_EQ(bytes, BytesOf(kind, 1, begin, end));
  }
  std::vector<std::byte> none;
  EXPECT_TRUE(reader->Read(kind.name, 0, 0, absl::MakeSpan(none)).ok());
  EXPECT_TRUE(reader->Read(kind.name, kind.elements, kind.elements, absl::MakeSpan(none)).ok());
}

// A matrix of 12 x 10 cut by columns over ranks is written as boxes, and read by rows or by columns
// of another cut.
TEST_F(CheckpointTest, BoxesAreReadInAnyOtherCut) {
  constexpr int64_t kRows = 12, kColumns = 10;
  auto value = [](int64_t element) { return static_cast<float>(element) + 0.5F; };
  CheckpointWriter writer(folder_.path(), 1, 3);
  for (int rank = 0; rank < 3; ++rank) {
    const int64_t first = rank * 3, width = rank == 2 ? 4 : 3;
    std::vector<float> values;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        values.push_back(value(row * kColumns + first + column));
      }
    }
    BufferPart part{"w", DType::kF32, kRows * kColumns};
    // Two rows, and the rest of the rows in a second range.
    part.ranges = {{first, width, kColumns, 2}, {2 * kColumns + first, width, kColumns, kRows - 2}};
    part.bytes = {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
    ASSERT_TRUE(writer.WriteShard(rank, {part}).ok());
  }
  ASSERT_TRUE(writer.Commit({}).ok());
  auto reader = Open(1);
  for (int64_t begin = 0; begin < kRows * kColumns; ++begin) {
    for (int64_t end = begin; end <= kRows * kColumns; ++end) {
      std::vector<float> read(static_cast<size_t>(end - begin));
      ASSERT_TRUE(
          reader
              ->Read("w", begin, end, {reinterpret_cast<std::byte*>(read.data()), read.size() * 4})
              .ok());
      for (size_t i = 0; i < read.size(); ++i) {
        ASSERT_EQ(read[i], value(begin + static_cast<int64_t>(i)));
      }
    }
  }
  std::vector<float> half(kRows * 5);  // columns 5 to 9
  ASSERT_TRUE(reader
                  ->Read("w", ElementRange{5, 5, kColumns, kRows},
                         {reinterpret_cast<std::byte*>(half.data()), half.size() * 4})
                  .ok());
  for (int64_t i = 0; i < kRows * 5; ++i) {
    ASSERT_EQ(half[static_cast<size_t>(i)], value(i / 5 * kColumns + 5 + i % 5));
  }
  EXPECT_FALSE(reader
                   ->Read("w", ElementRange{5, 5, kColumns, kRows},
                          {reinterpret_cast<std::byte*>(half.data()), 8})
                   .ok());
}

// With the right checksum.
std::string Seal(nlohmann::ordered_json body) {
  body.erase("crc32c");
  std::array<char, 9> checksum{};
  const std::string compact = body.dump();
  std::snprintf(checksum.data(), checksum.size(), "%08x", Crc32c(compact));
  body["crc32c"] = checksum.data();
  return body.dump(1);
}

TEST_F(CheckpointTest, ReadsTheRangesOfVersion1) {
  Write(1, 2);
  const Manifest manifest = Open(1)->manifest();
  nlohmann::ordered_json body = nlohmann::ordered_json::parse(ToJson(manifest));
  body["version"] = 1;
  for (auto& buffer : body["buffers"]) {
    buffer.erase("shape");
    buffer.erase("checksums");
    for (auto& slice : buffer["slices"]) {
      const int64_t begin = slice["begin"], length = slice["length"];
      slice = {{"shard", slice["shard"]}, {"begin", begin}, {"end", begin + length}};
    }
  }
  auto read = ParseManifest(Seal(body), "old");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->HasShapes());
  Manifest without = manifest;
  for (BufferLayout& buffer : without.buffers) {
    buffer.shape = {buffer.elements};
    buffer.checksums.clear();
  }
  EXPECT_EQ(ToJson(*read), ToJson(without));
}

TEST_F(CheckpointTest, ReadsVersion2WhichHasNoShapes) {
  Write(1, 2);
  nlohmann::ordered_json body = nlohmann::ordered_json::parse(ToJson(Open(1)->manifest()));
  body["version"] = 2;
  for (auto& buffer : body["buffers"]) {
    buffer.erase("shape");
    buffer.erase("checksums");
  }
  ASSERT_TRUE(WriteFileAtomically(Path(1) + "/manifest.json", Seal(body)).ok());
  auto reader = Open(1);
  EXPECT_FALSE(reader->manifest().HasShapes());
  EXPECT_EQ(Compare(*reader, 1), "");
  // What version 3 added is demanded of it.
  body["version"] = 3;
  EXPECT_THAT(std::string(ParseManifest(Seal(body), "m").status().message()),
              HasSubstr("'shape' should be a list"));
}

TEST_F(CheckpointTest, KeepsShapesAndAChecksumOfEachTensor) {
  std::vector<std::byte> bytes(24);
  CheckpointWriter writer(folder_.path(), 1, 2);
  BufferPart part{"w", DType::kF32, 12};
  part.shape = {3, 4};
  part.bytes = bytes;
  for (int rank = 0; rank < 2; ++rank) {
    part.begin = rank * 6;
    bytes[0] = static_cast<std::byte>(rank);
    ASSERT_TRUE(writer.WriteShard(rank, {part}).ok());
  }
  ASSERT_TRUE(writer.Commit({}).ok());
  const BufferLayout buffer = *Open(1)->manifest().Find("w");
  EXPECT_EQ(buffer.shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(buffer.checksums.at(1), Crc32c(bytes));
  EXPECT_NE(buffer.checksums.at(0), buffer.checksums.at(1));
  part.shape = {3, 5};
  EXPECT_THAT(std::string(writer.WriteShard(0, {part}).message()), HasSubstr("shape is [3, 5]"));
  part.shape = {4, 3};
  ASSERT_TRUE(writer.WriteShard(1, {part}).ok());
  part.shape = {3, 4};
  part.begin = 0;
  ASSERT_TRUE(writer.WriteShard(0, {part}).ok());
  EXPECT_THAT(std::string(writer.Commit({}).status().message()),
              HasSubstr("has the shape [4, 3] on rank 1, but [3, 4]"));
}

TEST_F(CheckpointTest, ChecksumsOfAnotherThreadAreThoseOfTheFile) {
  for (const bool beside : {false, true}) {
    const int64_t step = beside ? 2 : 1;
    CheckpointWriter writer(folder_.path(), step, 1);
    writer.set_checksums_beside(beside);
    ASSERT_TRUE(WriteRank(writer, /*step=*/7, 0, 1).ok());
    ASSERT_TRUE(writer.Commit(StateAt(step)).ok());
  }
  const auto one = CheckpointReader::Open(Path(1), Verification::kEverything);
  const auto two = CheckpointReader::Open(Path(2), Verification::kEverything);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  for (const BufferLayout& buffer : (*one)->manifest().buffers) {
    EXPECT_EQ((*two)->manifest().Find(buffer.name)->checksums, buffer.checksums) << buffer.name;
  }
}

// A shard of three pieces is given up before the second of them, and before it is synced.
TEST_F(CheckpointTest, AShardThatIsGivenUpLeavesTheEarlierCheckpoint) {
  Write(1, 1);
  const std::vector<std::byte> bytes(3 << 20, std::byte{7});
  BufferPart part{"w", DType::kU8, static_cast<int64_t>(bytes.size())};
  part.bytes = bytes;
  for (const bool beside : {false, true}) {
    CheckpointWriter writer(folder_.path(), 2, 1);
    writer.set_checksums_beside(beside);
    for (const int last : {2, 4}) {
      int asked = 0;
      writer.set_gives_up([&] { return ++asked == last; });
      const absl::Status status = writer.WriteShard(0, {part});
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(writer.temporary()));
      EXPECT_EQ(asked, last);
      EXPECT_TRUE(fs::is_empty(writer.temporary()));
      const auto latest = FindLatest(folder_.path());
      ASSERT_TRUE(latest.ok()) << latest.status();
      EXPECT_EQ(latest->step, 1);
    }
    writer.set_gives_up([] { return false; });
    ASSERT_TRUE(writer.WriteShard(0, {part}).ok());
    ASSERT_TRUE(writer.Commit({}).ok());
    EXPECT_EQ(FindLatest(folder_.path())->step, 2);
    fs::remove_all(Path(2));
  }
}

TEST_F(CheckpointTest, RefusesRangesAndNamesThatAreNone) {
  Write(1, 2);
  auto reader = Open(1);
  std::vector<std::byte> bytes(8);
  absl::Span<std::byte> out = absl::MakeSpan(bytes);
  EXPECT_THAT(std::string(reader->Read("weights", 0, 2, out).message()),
              HasSubstr("has no buffer 'weights'; it has "));
  EXPECT_FALSE(reader->Read("parameters", -1, 1, out).ok());
  EXPECT_FALSE(reader->Read("parameters", 0, 3, out).ok());
  EXPECT_FALSE(reader->Read("parameters", 30010, 30012, out).ok());
  EXPECT_FALSE(reader->Read("parameters", 2, 0, out).ok());
}

TEST_F(CheckpointTest, ReadsWithManyThreads) {
  Write(1, 4);
  auto reader = Open(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] { EXPECT_EQ(Compare(*reader, 1), ""); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CheckpointTest, GivesNoByteOfADamagedShard) {
  Write(1, 2);
  Damage(Shard(1, 1, 2), static_cast<int64_t>(fs::file_size(Shard(1, 1, 2))) - 5);
  auto reader = Open(1);  // sizes are right
  std::vector<std::byte> bytes(4);
  EXPECT_TRUE(reader->Read("parameters", 0, 1, absl::MakeSpan(bytes)).ok());  // the other shard
  for (int i = 0; i < 2; ++i) {
    absl::Status status = reader->Read("parameters", 30010, 30011, absl::MakeSpan(bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank-00001-of-00002"));
  }
  EXPECT_FALSE(CheckpointReader::Open(Path(1), Verification::kEverything).ok());
}

TEST_F(CheckpointTest, NoticesEveryChangedByteOfTheManifest) {
  Write(1, 1);
  const std::string path = Path(1) + "/manifest.json";
  const std::string good = *ReadFile(path);
  int accepted = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x11);
    auto manifest = ParseManifest(bad, path);
    if (!manifest.ok()) continue;
    EXPECT_EQ(ToJson(*manifest), good) << i;  // white space only
    ++accepted;
  }
  EXPECT_EQ(accepted, 0);
  for (size_t size = 0; size + 2 < good.size(); ++size) {
    EXPECT_FALSE(ParseManifest(good.substr(0, size), path).ok()) << size;
  }
}

// Bodies with a right checksum but wrong content: made by another program, not by damage.
TEST_F(CheckpointTest, ChecksTheManifestsContent) {
  Write(1, 2);
  const Manifest good = Open(1)->manifest();
  auto message = [](const Manifest& manifest) {
    return std::string(ParseManifest(ToJson(manifest), "m").status().message());
  };
  EXPECT_EQ(message(good), "");
  Manifest bad = good;
  bad.buffers[0].slices[1].range.begin -= 1;
  EXPECT_THAT(message(bad), HasSubstr("are held by the ones before it"));
  bad = good;
  bad.buffers[0].slices[1].range.count = int64_t{1} << 60;
  EXPECT_THAT(message(bad), HasSubstr("runs of"));
  bad = good;
  bad.buffers[0].slices[1].range = {0, 1, -5, 3};
  EXPECT_NE(message(bad), "");
  bad = good;
  bad.buffers[0].elements += 1;
  EXPECT_THAT(message(bad), HasSubstr("the shards hold"));
  bad = good;
  bad.buffers[0].slices[1].shard = 2;
  EXPECT_THAT(message(bad), HasSubstr("shard 2"));
  bad = good;
  bad.buffers.push_back(bad.buffers[0]);
  EXPECT_THAT(message(bad), HasSubstr("twice"));
  bad = good;
  bad.shards.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("one a rank"));
  bad = good;
  bad.shards[0].file = "../../etc/passwd";
  EXPECT_THAT(message(bad), HasSubstr("not a plain file name"));
  bad = good;
  bad.buffers[0].shape = {2, 3};
  EXPECT_THAT(message(bad), HasSubstr("its shape is [2, 3]"));
  bad.buffers[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(message(bad), HasSubstr("its shape is ["));
  std::string version = absl::StrReplaceAll(ToJson(good), {{"\"version\": 3", "\"version\": 4"}});
  EXPECT_THAT(std::string(ParseManifest(version, "m").status().message()),
              HasSubstr("has version 4; this program reads versions 1 to 3"));
}

TEST_F(CheckpointTest, CommitsOnlyWhatIsWhole) {
  CheckpointWriter writer(folder_.path(), 5, 2);
  ASSERT_TRUE(WriteRank(writer, 5, 0, 2).ok());
  auto commit = writer.Commit({});
  EXPECT_THAT(std::string(commit.status().message()), HasSubstr("rank 1 wrote no shard of step 5"));
  EXPECT_EQ(Latest().step, -1);
  ASSERT_TRUE(WriteRank(writer, 5, 1, 2).ok());
  fs::resize_file(folder_ / ".tmp-step-00000005/rank-00001-of-00002.safetensors", 10);
  EXPECT_THAT(std::string(writer.Commit({}).status().message()), HasSubstr("has 10 bytes"));
  writer.Abandon();
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(CheckpointTest, RefusesPartsThatDoNotMakeAWhole) {
  std::vector<std::byte> bytes(40);
  auto commit = [&](int64_t begin, int64_t elements, DType dtype) {
    CheckpointWriter writer(folder_.path(), 5, 2);
    BufferPart first{"p", DType::kF32, 20, 0, bytes};  // [0, 10)
    BufferPart second{"p", dtype, elements, begin, bytes};
    absl::Status status = writer.WriteShard(0, {first});
    status.Update(writer.WriteShard(1, {second}));
    if (status.ok()) status = writer.Commit({}).status();
    return std::string(status.message());
  };
  EXPECT_EQ(commit(10, 20, DType::kF32), "");
  EXPECT_THAT(commit(9, 20, DType::kF32), HasSubstr("are held by the ones before it"));
  EXPECT_THAT(commit(11, 20, DType::kF32), HasSubstr("at element 11 of 20"));
  EXPECT_THAT(commit(10, 21, DType::kF32), HasSubstr("21 x F32 on rank 1, but 20 x F32"));
  EXPECT_THAT(commit(0, 20, DType::kBF16), HasSubstr("20 x BF16 on rank 1"));
  CheckpointWriter writer(folder_.path(), 6, 1);
  EXPECT_FALSE(writer.WriteShard(1, {}).ok());
}

TEST_F(CheckpointTest, TakesABufferThatOneRankHoldsAlone) {
  std::vector<std::byte> bytes(40, std::byte{3});
  CheckpointWriter writer(folder_.path(), 5, 3);
  ASSERT_TRUE(writer.WriteShard(0, {}).ok());
  ASSERT_TRUE(writer.WriteShard(1, {BufferPart{"p", DType::kF32, 10, 0, {}}}).ok());
  ASSERT_TRUE(writer.WriteShard(2, {BufferPart{"p", DType::kF32, 10, 0, bytes}}).ok());
  ASSERT_TRUE(writer.Commit({}).ok());
  std::vector<std::byte> back(40);
  ASSERT_TRUE(Open(5)->Read("p", 0, 10, absl::MakeSpan(back)).ok());
  EXPECT_EQ(back, bytes);
}

TEST_F(CheckpointTest, ReplacesOneOfTheSameStepAndForgetsStaleFiles) {
  Write(5, 4);
  // A try with eight ranks that was killed.
  CheckpointWriter killed(folder_.path(), 5, 8);
  ASSERT_TRUE(WriteRank(killed, 5, 7, 8).ok());
  Write(5, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(Path(5)), {}), 3);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
  EXPECT_EQ(Compare(*Open(5), 5), "");
  EXPECT_EQ(Open(5)->manifest().world_size, 2);
}

TEST(CheckpointName, SortsByStepAndGrows) {
  EXPECT_EQ(CheckpointName(7), "step-00000007");
  int64_t step = 0;
  EXPECT_TRUE(ParseCheckpointName(CheckpointName(12345678901), step));
  EXPECT_EQ(step, 12345678901);
  EXPECT_FALSE(ParseCheckpointName("step-99999999999999999999", step));
  EXPECT_FALSE(ParseCheckpointName("step-", step));
}

}  // namespace
}  // namespace weft::train
