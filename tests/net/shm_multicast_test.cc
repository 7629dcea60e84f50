// Rings that one process writes and others read: entries, their reuse, and how links show them.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "net/shm/multicast_ring.h"
#include "tests/net/shm_test_util.h"

namespace weft::net::shm {
namespace {

constexpr uint64_t kPayload = 1000;

std::shared_ptr<const std::byte> BytesOf(const MulticastWriter& writer) {
  return {writer.memory(), writer.memory()->data()};
}

std::unique_ptr<MulticastReader> ReaderOf(const MulticastWriter& writer) {
  return MulticastReader::Open(BytesOf(writer), writer.memory()->bytes(), kPayload);
}

TEST(MulticastRing, ACallIsThereOnceItIsPublishedAndUntilItsEntryIsReused) {
  MulticastWriter writer = *MulticastWriter::Create(kPayload);
  const auto reader = ReaderOf(writer);
  uint64_t check = 0;
  EXPECT_EQ(reader->Read(0, &check), nullptr);
  for (uint64_t call = 0; call < 40; ++call) {
    std::memset(writer.Payload(call), static_cast<int>(call), kPayload);
    EXPECT_FALSE(reader->Has(call));
    writer.Publish(call, call + 7);
    const std::byte* payload = reader->Read(call, &check);
    ASSERT_NE(payload, nullptr);
    EXPECT_EQ(check, call + 7);
    for (uint64_t i = 0; i < kPayload; ++i) ASSERT_EQ(payload[i], std::byte(call));
    EXPECT_FALSE(reader->Has(call + 1));
    EXPECT_EQ(call >= 15 && reader->Has(call - 15), call >= 15);
    EXPECT_FALSE(call >= 16 && reader->Has(call - 16));
  }
  EXPECT_EQ(reader->finished(), 0);
  writer.Finish(5);
  EXPECT_EQ(reader->finished(), 5);
}

TEST(MulticastRing, ReadersSeeOnWhichCpuTheWriterWaitedLast) {
  MulticastWriter writer = *MulticastWriter::Create(kPayload);
  const auto reader = ReaderOf(writer);
  EXPECT_FALSE(reader->HasWaitedOn(0, 0));  // it never has
  writer.TellWait(0, 0);
  EXPECT_TRUE(reader->HasWaitedOn(0, 0));
  EXPECT_FALSE(reader->HasWaitedOn(0, 1));
  EXPECT_FALSE(reader->HasWaitedOn(1, 0));  // that was before
  writer.TellWait(70000, 8191);
  EXPECT_TRUE(reader->HasWaitedOn(70000, 8191));
  EXPECT_TRUE(reader->HasWaitedOn(69000, 8191));
  EXPECT_FALSE(reader->HasWaitedOn(70001, 8191));
  EXPECT_FALSE(reader->HasWaitedOn(69000, 0));
}

TEST(MulticastRing, PayloadsBeginWhereLoopsThatReduceWantThem) {
  MulticastWriter writer = *MulticastWriter::Create(kPayload);
  for (uint64_t call = 0; call < MulticastRing::kEntries; ++call) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(writer.Payload(call)) % MulticastRing::kAlignment, 0);
  }
}

TEST(MulticastRing, MemoryOfAnotherSizeIsNoRing) {
  MulticastWriter writer = *MulticastWriter::Create(kPayload);
  const uint64_t bytes = writer.memory()->bytes();
  EXPECT_NE(MulticastReader::Open(BytesOf(writer), bytes, kPayload), nullptr);
  EXPECT_EQ(MulticastReader::Open(BytesOf(writer), bytes, 2 * kPayload), nullptr);
  EXPECT_EQ(MulticastReader::Open(BytesOf(writer), bytes - kPageBytes, kPayload), nullptr);
  EXPECT_EQ(MulticastReader::Open(nullptr, 0, kPayload), nullptr);
}

TEST(MulticastRing, AReaderSeesWholeEntriesWhileItsWriterRuns) {
  MulticastWriter writer = *MulticastWriter::Create(kPayload);
  MulticastWriter answers = *MulticastWriter::Create(kPayload);  // the reader's ring, for its head
  const auto reader = ReaderOf(writer), finished = ReaderOf(answers);
  constexpr uint64_t kCalls = 20000;
  std::thread other([&] {
    for (uint64_t call = 0; call < kCalls; ++call) {
      uint64_t check = 0;
      const std::byte* payload = nullptr;
      while ((payload = reader->Read(call, &check)) == nullptr) std::this_thread::yield();
      uint64_t first = 0, last = 0;
      std::memcpy(&first, payload, 8), std::memcpy(&last, payload + kPayload - 8, 8);
      ASSERT_TRUE(first == call && last == call && check == ~call) << call;
      answers.Finish(call + 1);
    }
  });
  for (uint64_t call = 0; call < kCalls; ++call) {
    while (finished->finished() + MulticastRing::kEntries <= call) std::this_thread::yield();
    std::memcpy(writer.Payload(call), &call, 8);
    std::memcpy(writer.Payload(call) + kPayload - 8, &call, 8);
    writer.Publish(call, ~call);
  }
  other.join();
}

TEST(ShownMemory, IsFoundByTheNumberThatTheSenderHas) {
  ShmPair pair;
  MulticastWriter writer = *MulticastWriter::Create(kPayload);
  const SharedMemory& memory = *writer.memory();
  std::optional<uint32_t> number;
  ASSERT_TRUE(pair.Pump([&] {
    number = pair.sender->Show(memory.data(), memory.bytes());
    return number.has_value();
  }));
  EXPECT_NE(*number, SendLink::kNotShown);
  EXPECT_EQ(pair.sender->Show(memory.data(), memory.bytes()), number);  // shown once
  const net::ShownMemory shown = pair.receiver->Shown(*number);
  ASSERT_NE(shown.data, nullptr);
  EXPECT_EQ(shown.bytes, memory.bytes());
  EXPECT_NE(shown.data.get(), memory.data());  // mapped anew
  const auto reader = MulticastReader::Open(shown.data, shown.bytes, kPayload);
  ASSERT_NE(reader, nullptr);
  writer.Payload(0)[3] = std::byte{42};
  writer.Publish(0, 1);
  uint64_t check = 0;
  EXPECT_EQ(reader->Read(0, &check)[3], std::byte{42});
  EXPECT_EQ(pair.receiver->Shown(*number + 1).data, nullptr);
  std::byte other[64];
  EXPECT_EQ(pair.sender->Show(other, sizeof other), SendLink::kNotShown);
}

// Many groups show their rings at once while the receiver takes no turn: packets queue up.
TEST(ShownMemory, IsFoundBehindManyOthersOnTheSocket) {
  ShmPair pair;
  std::vector<MulticastWriter> writers;
  writers.push_back(*MulticastWriter::Create(1));
  const SharedMemory& first = *writers.back().memory();
  std::optional<uint32_t> last;
  ASSERT_TRUE(pair.Pump([&] {
    last = pair.sender->Show(first.data(), first.bytes());
    return last.has_value();
  }));
  for (int i = 0; i < 100; ++i) {
    writers.push_back(*MulticastWriter::Create(1));
    const SharedMemory& memory = *writers.back().memory();
    last = pair.sender->Show(memory.data(), memory.bytes());
    ASSERT_TRUE(last.has_value() && *last != SendLink::kNotShown) << i;
  }
  EXPECT_NE(pair.receiver->Shown(*last).data, nullptr);
}

}  // namespace
}  // namespace weft::net::shm
