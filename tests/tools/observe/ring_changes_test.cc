#include "tools/observe/ring_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/read_file.h"
#include "base/record_files.h"
#include "base/records.h"
#include "tests/frequent_signals.h"
#include "tests/scratch_folder.h"

namespace weft::observe {
namespace {

using ::testing::HasSubstr;

// Eight bytes of the size, and zlib's stream.
std::string Packed(const std::string& plain) {
  const uint64_t size = plain.size();
  uLongf packed = compressBound(plain.size());
  std::string out(sizeof(size) + packed, '\0');
  std::memcpy(out.data(), &size, sizeof(size));
  compress(reinterpret_cast<Bytef*>(out.data() + sizeof(size)), &packed,
           reinterpret_cast<const Bytef*>(plain.data()), plain.size());
  out.resize(sizeof(size) + packed);
  return out;
}

std::string Unpacked(const std::string& packed) {
  uint64_t size = 0;
  std::memcpy(&size, packed.data(), sizeof(size));
  std::string out(size, '\0');
  uLongf unpacked = size;
  EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(out.data()), &unpacked,
                       reinterpret_cast<const Bytef*>(packed.data() + sizeof(size)),
                       packed.size() - sizeof(size)),
            Z_OK);
  return out;
}

class RingChanges : public ::testing::Test {
 protected:
  std::unique_ptr<Records> Open(int rank = 0, Bytes bytes = KiB(40)) {
    auto records = Records::Open({.folder = folder_ / "rings",
                                  .job = "job",
                                  .rank = rank,
                                  .world_size = 4,
                                  .bytes = bytes,
                                  .keep = true});
    EXPECT_TRUE(records.ok()) << records.status();
    return *std::move(records);
  }
  static void WriteSteps(Records& records, int64_t from, int64_t count) {
    for (int64_t step = from; step < from + count; ++step) {
      records.Write(StepRecord{.start_ns = step * 10, .end_ns = step * 10 + 5, .step = step});
    }
  }
  static std::vector<int64_t> Steps(RecordReader& reader) {
    std::vector<int64_t> out;
    for (const Record& record : reader.Read()) out.push_back(record.As<StepRecord>().step);
    return out;
  }
  std::string Changes(const Records& records, const RingCopy& copy) {
    auto changes = ChangesSince(records.path(), copy.cursor());
    EXPECT_TRUE(changes.ok()) << changes.status();
    return changes.value_or("");
  }
  std::string prefix() const { return folder_ / "copy"; }

  ScratchFolder folder_;
};

// What a reader of the ring and a reader of the copy see is the same, look by look.
TEST_F(RingChanges, BringACopyUpToDate) {
  auto records = Open(2);
  RingCopy copy(prefix());
  std::unique_ptr<RecordReader> here, there;
  int64_t step = 0;
  for (int look = 0; look < 40; ++look) {
    WriteSteps(*records, step, look);  // from none to a few; the ring wraps
    step += look;
    records->Name("phase" + std::to_string(look));
    if (look % 3 == 0) {
      EXPECT_TRUE(records->Say("line " + std::to_string(look)));
    }
    records->SetStep(step);
    const std::string changes = Changes(*records, copy);
    if (look > 0) {
      EXPECT_LT(changes.size(), 1000u + static_cast<size_t>(look) * 64);
    }
    ASSERT_TRUE(copy.Apply(changes).ok());
    if (there == nullptr) {
      here = *RecordReader::Open(records->path());
      there = *RecordReader::Open(copy.path());
    }
    EXPECT_EQ(Steps(*there), Steps(*here));
    EXPECT_EQ(there->process().lines, here->process().lines);
    EXPECT_EQ(there->process().step, step);
    EXPECT_EQ(there->process().rank, 2);
    for (RecordName name = 1; name < 60; ++name) EXPECT_EQ(there->Name(name), here->Name(name));
    EXPECT_EQ(there->lost(), here->lost());
  }
}

TEST_F(RingChanges, SayWhatWasOverwrittenBetweenTwoLooks) {
  auto records = Open();
  RingCopy copy(prefix());
  WriteSteps(*records, 0, 3);
  ASSERT_TRUE(copy.Apply(Changes(*records, copy)).ok());
  auto there = *RecordReader::Open(copy.path());
  EXPECT_EQ(Steps(*there), (std::vector<int64_t>{0, 1, 2}));
  WriteSteps(*records, 3, 1000);
  ASSERT_TRUE(copy.Apply(Changes(*records, copy)).ok());
  const std::vector<int64_t> steps = Steps(*there);
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back(), 1002);
  EXPECT_EQ(there->lost(), 1000 - steps.size());
}

TEST_F(RingChanges, MakeACopyWhateverSignalsCome) {
  auto records = Open(0, MiB(16));
  RingCopy copy(prefix());
  const std::string whole = Changes(*records, copy);
  const FrequentSignals signals;
  const absl::Status made = copy.Apply(whole);
  EXPECT_TRUE(made.ok()) << made;
}

// A cursor of another process, or from nowhere, gets the whole ring.
TEST_F(RingChanges, OfAnotherProcessAreAllOfItsRing) {
  auto records = Open();
  WriteSteps(*records, 0, 5);
  const std::string whole = *ChangesSince(records->path(), {});
  EXPECT_EQ(*ChangesSince(records->path(), {.made = 1, .records = 5, .names = 3, .text = 7}),
            whole);
  RingCopy copy(prefix());
  ASSERT_TRUE(copy.Apply(whole).ok());
  EXPECT_LT(Changes(*records, copy).size(), whole.size());
}

TEST_F(RingChanges, ThatDoNotFollowAreRefusedAndChangeNothing) {
  auto records = Open();
  WriteSteps(*records, 0, 5);
  records->Name("a name");
  RingCopy copy(prefix());
  const std::string first = Changes(*records, copy);
  ASSERT_TRUE(copy.Apply(first).ok());
  WriteSteps(*records, 5, 5);
  records->Name("another");
  ASSERT_TRUE(copy.Apply(Changes(*records, copy)).ok());
  const std::string before = *ReadFile(copy.path());
  EXPECT_EQ(copy.Apply(first).code(), absl::StatusCode::kDataLoss);  // from the past
  EXPECT_EQ(copy.Apply("").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(copy.Apply(std::string(2000, 'x')).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(copy.Apply(Packed(std::string(2000, 'x'))).message()),
              HasSubstr("another version"));
  EXPECT_EQ(*ReadFile(copy.path()), before);
  EXPECT_EQ(copy.cursor().records, 10u);
}

// An agent that goes back to an earlier process, whose ring it now calls shorter: a reader of the
// copy has that mapped.
TEST_F(RingChanges, OfAnEarlierProcessCutNoCopyThatIsRead) {
  auto records = Open();
  WriteSteps(*records, 0, 500);
  const std::string first = *ChangesSince(records->path(), {});
  std::string other = Unpacked(first);
  const size_t header = 7 * sizeof(uint64_t);  // behind the counts
  other[header + offsetof(RecordFileHeader, process_start)] ^= 1;
  auto small = Records::Open({.folder = folder_ / "rings", .job = "small", .bytes = KiB(4)});
  std::string shorter = Unpacked(*ChangesSince((*small)->path(), {}));
  std::memcpy(shorter.data() + header + offsetof(RecordFileHeader, process_start),
              Unpacked(first).data() + header + offsetof(RecordFileHeader, process_start),
              sizeof(uint64_t));
  RingCopy copy(prefix());
  ASSERT_TRUE(copy.Apply(first).ok());
  auto reader = RecordReader::Open(copy.path());
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(copy.Apply(Packed(other)).ok());
  ASSERT_TRUE(copy.Apply(Packed(shorter)).ok());
  EXPECT_EQ(Steps(**reader).size(), 500U);
}

// Whatever bytes come: refused, or a copy whose reader stays within it.
TEST_F(RingChanges, OfAnyBytesAreRefusedOrReadable) {
  auto records = Open();
  WriteSteps(*records, 0, 100);
  records->Name("a name");
  records->Say("a line");
  const std::string packed = *ChangesSince(records->path(), {});
  const std::string good = Unpacked(packed);
  std::mt19937_64 random(7);
  int applied = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bad = good;
    const int flips = 1 + static_cast<int>(random() % 4);
    for (int flip = 0; flip < flips; ++flip) {
      // The counts and the header's numbers more often than the records.
      bad[random() % (random() % 2 == 0 ? 600 : bad.size())] = static_cast<char>(random());
    }
    if (random() % 8 == 0) bad.resize(random() % bad.size());
    std::string sent = Packed(bad);
    if (random() % 4 == 0) sent[random() % sent.size()] = static_cast<char>(random());
    RingCopy copy(prefix());
    if (!copy.Apply(sent).ok()) continue;
    ++applied;
    if (auto reader = RecordReader::Open(copy.path()); reader.ok()) {
      (*reader)->Read();
      (*reader)->process();
      for (int name = 0; name < 300; ++name) (*reader)->Name(static_cast<RecordName>(name));
    }
    std::filesystem::remove(copy.path());
  }
  EXPECT_GT(applied, 100);
}

TEST_F(RingChanges, AreAskedForByACursorsText) {
  const auto cursor = ParseCursor(CursorText({.made = 17, .records = 4, .names = 3, .text = 2}));
  ASSERT_TRUE(cursor.ok());
  EXPECT_EQ(cursor->made, 17u);
  EXPECT_EQ(cursor->records, 4u);
  EXPECT_EQ(cursor->names, 3u);
  EXPECT_EQ(cursor->text, 2u);
  for (const char* bad : {"", "1.2.3", "1.2.3.4.5", "1.2.3.x", "1.2.3.-4"}) {
    EXPECT_FALSE(ParseCursor(bad).ok()) << bad;
  }
}

TEST_F(RingChanges, OfAFileThatIsNoRingAreAnError) {
  const std::string path = folder_ / "file";
  EXPECT_EQ(ChangesSince(path, {}).status().code(), absl::StatusCode::kNotFound);
  folder_.Write("file", std::string(40000, 'x'));
  EXPECT_THAT(std::string(ChangesSince(path, {}).status().message()),
              HasSubstr("no file of records"));
}

}  // namespace
}  // namespace weft::observe
