// What a run leaves for those who watch it: records of phases and steps, and TensorBoard's events.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/crc32c.h"
#include "base/record_files.h"
#include "tests/scoped_variable.h"
#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

const std::vector<std::string> kShort = {"train.steps=3", "sample.tokens=0", "log.trace_steps=0"};

TEST_F(TrainRunTest, RecordsItsPhasesAndStepsWithoutATrace) {
  const std::string rings = RunDir("rings");
  const ScopedVariable folder("WEFT_RECORDS_FOLDER", rings), keep("WEFT_RECORDS_KEEP", "true");
  const Outcome outcome = Run(2, "recorded", kShort);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_FALSE(fs::exists(RunDir("recorded") + "/trace.json"));
  const std::map<int, json> metrics = Metrics("recorded");
  const std::vector<std::string> files = RecordFilesIn(rings);
  ASSERT_THAT(files, SizeIs(2));
  for (const std::string& file : files) {
    auto reader = RecordReader::Open(file);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_THAT((*reader)->process().lines, Contains(HasSubstr("mesh ")));
    std::set<std::string> phases;
    std::vector<int64_t> steps;
    for (const Record& record : (*reader)->Read()) {
      if (record.kind() == RecordKind::kPhase) {
        phases.insert((*reader)->Name(record.As<PhaseRecord>().name));
      }
      if (record.kind() != RecordKind::kStep) continue;
      const auto step = record.As<StepRecord>();
      steps.push_back(step.step);
      EXPECT_EQ(step.loss, metrics.at(static_cast<int>(step.step))["loss"].get<double>());
      EXPECT_GT(step.end_ns, step.start_ns);
    }
    EXPECT_THAT(steps, ElementsAre(1, 2, 3));
    for (const char* phase : {"data", "forward", "backward", "optimizer", "checkpoint",
                              "wait_reduce_scatter", "wait_norm"}) {
      EXPECT_EQ(phases.count(phase), 1u) << phase;
    }
  }
}

uint64_t LittleEndian(const std::string& bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[at + static_cast<size_t>(i)])} << (8 * i);
  }
  return value;
}

uint32_t Masked(const std::string& bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

TEST_F(TrainRunTest, WritesEventsThatTensorBoardReads) {
  std::vector<std::string> settings = kShort;
  settings.emplace_back("train.tensorboard=true");
  const Outcome outcome = Run(1, "board", settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::string file;
  for (const auto& entry : fs::directory_iterator(RunDir("board") + "/tensorboard")) {
    EXPECT_THAT(entry.path().filename().string(), HasSubstr("events.out.tfevents."));
    file = entry.path().string();
  }
  std::ifstream in(file, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size();) {
    ASSERT_LE(at + 12, bytes.size());
    const uint64_t length = LittleEndian(bytes, at, 8);
    EXPECT_EQ(LittleEndian(bytes, at + 8, 4), Masked(bytes.substr(at, 8)));
    ASSERT_LE(at + 16 + length, bytes.size());
    events.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(LittleEndian(bytes, at + 12 + length, 4), Masked(events.back()));
    at += 16 + length;
  }
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_THAT(events[0], HasSubstr("brain.Event:2"));
  const float loss = static_cast<float>(Metrics("board").at(2)["loss"].get<double>());
  char number[4];
  std::memcpy(number, &loss, 4);
  // tag (field 1), simple_value (field 2, of four bytes)
  EXPECT_THAT(events[2], HasSubstr(std::string("\x0a\x0aloss/train\x15") + std::string(number, 4)));
}

}  // namespace
}  // namespace weft::train
