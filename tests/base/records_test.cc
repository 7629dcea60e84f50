#include "base/records.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/record_files.h"
#include "base/settings.h"
#include "base/trace.h"
#include "tests/frequent_signals.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

RecordOptions In(const std::string& folder) {
  RecordOptions options;
  options.folder = folder;
  options.job = "a job/with .. all";
  options.rank = 3;
  options.world_size = 8;
  options.bytes = KiB(8);  // 128 records
  return options;
}

StepRecord Step(int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 0.5;
  return record;
}

TEST(Records, AreReadWhileTheyAreWritten) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok()) << records.status();
  const RecordName forward = (*records)->Name("forward");
  EXPECT_EQ((*records)->Name("forward"), forward);
  EXPECT_TRUE((*records)->Say("group world 0-7"));
  (*records)->SetStep(7);
  const std::vector<std::string> files = RecordFilesIn(folder / "rings");
  ASSERT_THAT(files, ElementsAre((*records)->path()));
  auto reader = RecordReader::Open(files[0]);
  ASSERT_TRUE(reader.ok()) << reader.status();
  {
    PhaseScope scope(records->get(), forward, 7);
    EXPECT_EQ((*reader)->process().phase, "forward");
  }
  (*records)->Write(Step(7));
  const std::vector<Record> read = (*reader)->Read();
  ASSERT_THAT(read, SizeIs(2));
  EXPECT_EQ(read[0].kind(), RecordKind::kPhase);
  EXPECT_EQ((*reader)->Name(read[0].As<PhaseRecord>().name), "forward");
  EXPECT_EQ(read[1].As<StepRecord>().loss, 0.5);
  EXPECT_THAT((*reader)->Read(), IsEmpty());
  const RecordProcess process = (*reader)->process();
  EXPECT_EQ(process.job, "a job/with .. all");
  EXPECT_EQ(process.rank, 3);
  EXPECT_EQ(process.pid, getpid());
  EXPECT_EQ(process.step, 7);
  EXPECT_EQ(process.phase, "");
  EXPECT_THAT(process.lines, ElementsAre("group world 0-7"));
  EXPECT_EQ(process.process_start, ProcessStart(getpid()));
}

TEST(Records, AreMadeWhateverSignalsCome) {
  ScratchFolder folder;
  RecordOptions options = In(folder / "rings");
  options.bytes = MiB(16);
  const FrequentSignals signals;
  const absl::Status made = Records::Open(options).status();
  EXPECT_TRUE(made.ok()) << made;
}

TEST(Records, CountWhatAReaderMissed) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  auto reader = RecordReader::Open((*records)->path());
  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 1000; ++i) (*records)->Write(Step(i));
  const std::vector<Record> read = (*reader)->Read();
  ASSERT_THAT(read, SizeIs(128));
  EXPECT_EQ(read.front().As<StepRecord>().step, 872);
  EXPECT_EQ((*reader)->lost(), 872u);
}

// Every record that is read is whole, and each is read once or counted as lost.
TEST(Records, AreWholeUnderManyWriters) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  auto reader = RecordReader::Open((*records)->path());
  ASSERT_TRUE(reader.ok());
  constexpr int kWriters = 3, kEach = 20000;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kEach; ++i) {
        PhaseRecord record;
        record.step = record.start_ns = record.end_ns = writer * kEach + i;
        (*records)->Write(record);
      }
    });
  }
  uint64_t seen = 0;
  const auto take = [&] {
    for (const Record& record : (*reader)->Read()) {
      const auto phase = record.As<PhaseRecord>();
      ASSERT_EQ(phase.step, phase.start_ns);
      ASSERT_EQ(phase.step, phase.end_ns);
      ++seen;
    }
  };
  while ((*reader)->written() < kWriters * kEach) take();
  for (std::thread& writer : writers) writer.join();
  take();
  EXPECT_EQ(seen + (*reader)->lost(), uint64_t{kWriters} * kEach);
}

// A writer that the kernel holds up between taking a record's number and writing it, or that dies
// there.
TEST(Records, WaitOnceForOneThatIsBeingWritten) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  auto reader = RecordReader::Open((*records)->path());
  ASSERT_TRUE(reader.ok());
  const int fd = open((*records)->path().c_str(), O_RDWR | O_CLOEXEC);
  const size_t bytes = RecordFileHeader::kBytes + 128 * sizeof(RecordSlot);
  void* file = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(file, MAP_FAILED);
  close(fd);
  auto* header = static_cast<RecordFileHeader*>(file);
  auto* slots = reinterpret_cast<RecordSlot*>(static_cast<char*>(file) + RecordFileHeader::kBytes);
  for (const bool dies : {false, true}) {
    (*records)->Write(Step(1));
    const uint64_t number = header->next.fetch_add(1);
    (*records)->Write(Step(3));
    EXPECT_THAT((*reader)->Read(), SizeIs(1));
    EXPECT_EQ((*reader)->lost(), 0u);
    if (!dies) {
      slots[number].words[0].store(static_cast<uint64_t>(RecordKind::kStep));
      slots[number].sequence.store(2 * number + 2);
    }
    EXPECT_THAT((*reader)->Read(), SizeIs(dies ? 1 : 2));
    EXPECT_EQ((*reader)->lost(), dies ? 1u : 0u);
  }
  munmap(file, bytes);
}

TEST(Records, OutliveAProcessThatDiesAndGoWithOneThatEnds) {
  ScratchFolder folder;
  for (const bool dies : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      auto records = Records::Open(In(folder / "rings"));
      if (!records.ok()) _exit(1);
      (*records)->Write(Step(42));
      if (dies) kill(getpid(), SIGKILL);
      records->reset();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const std::vector<std::string> files = RecordFilesIn(folder / "rings");
    ASSERT_THAT(files, SizeIs(1));  // of the first child, in both rounds
    auto reader = RecordReader::Open(files[0]);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->Read().at(0).As<StepRecord>().step, 42);
    EXPECT_EQ((*reader)->process().ended_ns, 0);
    EXPECT_EQ(ProcessStart((*reader)->process().pid), 0u);
  }
}

TEST(Records, StayWhenTheProcessSaysThatItFailed) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  (*records)->MarkFailed();
  records->reset();
  EXPECT_THAT(RecordFilesIn(folder / "rings"), SizeIs(1));
}

// Leaves the ring of a process that is gone, last seen two hours ago, in a file `hours` old.
void LeaveRecords(const std::filesystem::path& file, int hours) {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  const std::filesystem::path path =
      file.parent_path() / absl::StrCat(file.filename().string(), "-0-", gone, ".weft");
  const int64_t seen_ns = SystemClock::Nanoseconds() - int64_t{2} * 3600 * 1'000'000'000;
  std::string bytes(RecordFileHeader::kBytes, '\0');
  std::memcpy(&bytes[offsetof(RecordFileHeader, alive_ns)], &seen_ns, sizeof(seen_ns));
  std::ofstream(path) << bytes;
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
}

// The jobs of the files in a folder, after a process has opened its records there.
std::vector<std::string> JobsAfterOpen(const std::filesystem::path& folder) {
  auto records = Records::Open(In(folder));
  EXPECT_TRUE(records.ok()) << records.status();
  std::vector<std::string> jobs;
  for (const std::string& path : RecordFilesIn(folder)) {
    const std::string name = std::filesystem::path(path).filename().string();
    jobs.push_back(name.substr(0, name.find('-')));
  }
  return jobs;
}

TEST(Records, OfProcessesThatAreGoneForAnHourAreRemovedByOneProcessInTenMinutes) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch / "rings";
  const char* const own = "a_job_with_.._all";
  EXPECT_THAT(JobsAfterOpen(folder), UnorderedElementsAre(own));
  LeaveRecords(folder / "old", 2);
  LeaveRecords(folder / "young", 0);
  EXPECT_THAT(JobsAfterOpen(folder), UnorderedElementsAre("old", "young", own));
  const auto now = std::filesystem::file_time_type::clock::now();
  // The last search is too long ago, or in the future, as where the clock was set back.
  std::filesystem::last_write_time(folder / ".searched", now - std::chrono::minutes(11));
  EXPECT_THAT(JobsAfterOpen(folder), UnorderedElementsAre("young", own));
  LeaveRecords(folder / "old", 2);
  EXPECT_THAT(JobsAfterOpen(folder), UnorderedElementsAre("old", "young", own));
  std::filesystem::last_write_time(folder / ".searched", now + std::chrono::hours(2));
  EXPECT_THAT(JobsAfterOpen(folder), UnorderedElementsAre("young", own));
}

TEST(Records, OfProcessesThatAreGoneAreBoundedInAllAndTheOldestGo) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch / "rings";
  Settings settings{LibrarySettings()};
  ASSERT_TRUE(settings.Set("records.folder", folder.string(), "test").ok());
  ASSERT_TRUE(settings.Set("records.bytes", "8KiB", "test").ok());
  ASSERT_TRUE(settings.Set("records.dead_bytes", "100KiB", "test").ok());  // three files of 32 KiB
  const auto living = Records::FromSettings(settings, "living", 0, 1);
  ASSERT_NE(living, nullptr);
  for (const char* job : {"d", "a", "c", "b", "e"}) LeaveRecords(folder / job, 0);
  // "a" was seen first, "e" last.
  for (const std::string& path : RecordFilesIn(folder)) {
    const std::string job = std::filesystem::path(path).filename().string();
    if (job[0] == 'l') continue;
    const int64_t seen_ns = SystemClock::Nanoseconds() - int64_t{1'000'000'000} * ('z' - job[0]);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offsetof(RecordFileHeader, alive_ns));
    file.write(reinterpret_cast<const char*>(&seen_ns), sizeof(seen_ns));
  }
  const auto other = Records::FromSettings(settings, "other", 0, 1);
  ASSERT_NE(other, nullptr);
  std::vector<std::string> jobs;
  for (const std::string& path : RecordFilesIn(folder)) {
    const std::string name = std::filesystem::path(path).filename().string();
    jobs.push_back(name.substr(0, name.find('-')));
  }
  EXPECT_THAT(jobs, UnorderedElementsAre("c", "d", "e", "living", "other"));
}

TEST(Records, AreForTheirUserAlone) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  struct stat found {};
  ASSERT_EQ(stat((*records)->path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((folder / "rings").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  ASSERT_EQ(chmod((folder / "rings").c_str(), 0777), 0);
  const absl::Status open_to_all = Records::Open(In(folder / "rings")).status();
  EXPECT_EQ(open_to_all.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(open_to_all.message()), HasSubstr("writable for nobody else"));
  folder.Write("file", "");
  EXPECT_THAT(std::string(Records::Open(In(folder / "file")).status().message()),
              HasSubstr("is no folder"));
}

TEST(Records, OfAFullTableOfNamesAreNameless) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  RecordName last = 1;
  for (size_t i = 0; i < RecordFileHeader::kNames + 10; ++i) {
    last = (*records)->Name("name " + std::to_string(i));
  }
  EXPECT_EQ(last, 0);
  EXPECT_FALSE((*records)->Say(std::string(RecordFileHeader::kTextBytes, 'x')));
}

// Spans of one track of a trace are phases as well; others are not.
TEST(Records, HaveTheSpansOfATracesTrack) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  auto reader = RecordReader::Open((*records)->path());
  ASSERT_TRUE(reader.ok());
  Trace trace({"compute", "communication"}, 2);
  trace.SetRecords(records->get(), 0);
  {
    TraceScope forward(&trace, "forward", 0, 4);
    EXPECT_EQ((*reader)->process().phase, "forward");
    const RecordName before = trace.Enter("wait_all_gather", 1);
    EXPECT_EQ((*reader)->process().phase, "wait_all_gather");
    trace.Leave(before, 2);
    TraceScope gather(&trace, "all_gather", 1, 4);
    EXPECT_EQ((*reader)->process().phase, "forward");
  }
  EXPECT_EQ((*reader)->process().phase, "");
  const std::vector<Record> read = (*reader)->Read();
  ASSERT_THAT(read, SizeIs(1));
  EXPECT_EQ((*reader)->Name(read[0].As<PhaseRecord>().name), "forward");
  EXPECT_EQ(read[0].As<PhaseRecord>().step, 4);
}

TEST(RecordReader, RefusesWhatIsNoRing) {
  ScratchFolder folder;
  folder.Write("empty", "");
  folder.Write("zeros", std::string(100000, '\0'));
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  std::filesystem::copy_file((*records)->path(), folder / "short");
  std::filesystem::resize_file(folder / "short", RecordFileHeader::kBytes + 64);
  for (const char* name : {"empty", "zeros", "short"}) {
    const absl::Status status = RecordReader::Open(folder / name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  EXPECT_EQ(RecordReader::Open(folder / "none").status().code(), absl::StatusCode::kNotFound);
}

// A ring that somebody has spoilt is read to its end all the same.
TEST(RecordReader, SurvivesAnyBytes) {
  ScratchFolder folder;
  auto records = Records::Open(In(folder / "rings"));
  ASSERT_TRUE(records.ok());
  std::string bytes;
  {
    std::ifstream in((*records)->path(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  uint64_t state = 1;
  for (int round = 0; round < 50; ++round) {
    std::string spoilt = bytes;
    for (size_t i = 16; i < spoilt.size(); i += 1 + state % 97) {  // magic and capacity stay
      state = state * 6364136223846793005u + 1442695040888963407u;
      spoilt[i] = static_cast<char>(state >> 56);
    }
    std::ofstream(folder / "spoilt", std::ios::binary) << spoilt;
    auto reader = RecordReader::Open(folder / "spoilt");
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_LE((*reader)->Read().size(), 128u);
    EXPECT_LE((*reader)->process().job.size(), 64u);
    for (int name = 0; name < 65536; name += 251)
      (void)(*reader)->Name(static_cast<RecordName>(name));
  }
}

}  // namespace
}  // namespace weft
