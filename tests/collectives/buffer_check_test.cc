// verify.buffers: buffers that their owner frees or changes too early are found and named, on every
// rank, and nothing of it crashes.
#include "collectives/buffer_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/failure.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

constexpr size_t kCount = 100'000, kBytes = kCount * sizeof(int32_t);

// Memory that is truly gone when it is freed.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(data, MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
  }
  ~Pages() { munmap(data_, bytes_); }
  // The pages stay taken, so that no other thread's memory comes to lie there.
  void Free(size_t from = 0) { EXPECT_EQ(mprotect(data_ + from, bytes_ - from, PROT_NONE), 0); }
  std::byte* data() { return data_; }
  int32_t* numbers() { return reinterpret_cast<int32_t*>(data_); }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

BufferCheck::Buffer Whole(void* data, size_t bytes) { return {data, bytes, {{0, bytes}}}; }

TEST(BufferCheckTest, TheResultComesToItsOwnerAlsoInPlace) {
  std::vector<std::byte> in(700'000, std::byte{1}), out(300'000, std::byte{2});
  BufferCheck check(Whole(in.data(), in.size()), Whole(out.data(), out.size()));
  EXPECT_EQ(std::memcmp(check.input(), in.data(), in.size()), 0);
  std::memset(check.output(), 3, out.size());
  EXPECT_EQ(out[7], std::byte{2});
  ASSERT_TRUE(check.Finish().ok());
  EXPECT_EQ(out, std::vector<std::byte>(out.size(), std::byte{3}));

  BufferCheck within(Whole(in.data(), in.size()), Whole(in.data() + 1000, 500));
  EXPECT_EQ(static_cast<const std::byte*>(within.input()) + 1000, within.output());
  std::memset(within.output(), 4, 500);
  ASSERT_TRUE(within.Finish().ok());
  EXPECT_EQ(in[999], std::byte{1});
  EXPECT_EQ(in[1000], std::byte{4});
  EXPECT_EQ(in[1499], std::byte{4});
  EXPECT_EQ(in[1500], std::byte{1});
}

TEST(BufferCheckTest, NamesBufferAndByteThatWereChanged) {
  std::vector<std::byte> in(600'000), out(600'000);
  for (std::vector<std::byte>* buffer : {&in, &out}) {
    BufferCheck check(Whole(in.data(), in.size()), Whole(out.data(), out.size()));
    (*buffer)[500'001] = std::byte{1};
    const absl::Status found = check.Finish();
    EXPECT_EQ(found.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(found.message()),
                HasSubstr(absl::StrCat(buffer == &in ? "input" : "output", " buffer was changed")));
    EXPECT_THAT(std::string(found.message()), HasSubstr("at byte 500001 of 600000"));
    (*buffer)[500'001] = std::byte{0};
  }
}

TEST(BufferCheckTest, NamesBufferAndByteWhoseMemoryIsGone) {
  const size_t page = 65'536;
  for (bool is_input : {true, false}) {
    Pages in(4 * page), out(4 * page);
    BufferCheck check(Whole(in.data(), 4 * page), Whole(out.data(), 4 * page));
    (is_input ? in : out).Free(3 * page);
    const absl::Status found = check.Finish();
    EXPECT_EQ(found.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(found.message()),
                HasSubstr(absl::StrCat(is_input ? "input" : "output", " buffer was freed")));
    EXPECT_THAT(std::string(found.message()), HasSubstr("at byte 196608 of 262144"));
  }
}

TEST(BufferCheckTest, WhatLiesBetweenTheCallsPartsIsAnybodys) {
  std::vector<std::byte> in(100), out(100);
  BufferCheck check({in.data(), 100, {{0, 10}, {50, 10}}}, {out.data(), 100, {{20, 10}, {80, 20}}});
  in[10] = out[19] = out[30] = std::byte{1};
  std::memset(check.output(), 2, 100);
  ASSERT_TRUE(check.Finish().ok());
  EXPECT_EQ(out[19], std::byte{1});
  EXPECT_EQ(out[20], std::byte{2});
  EXPECT_EQ(out[30], std::byte{1});
}

// What rank 1 does to its buffers between its call and those of the others, which its own needs.
using Misdeed = std::function<void(Pages& in, Pages& out)>;

void ExpectFoundEverywhere(const Misdeed& misdeed, const std::string& expected) {
  std::latch done(1);
  RunWorld(3, {"verify.buffers=true", "collective.timeout=60s"}, [&](Communicator& world) {
    const bool guilty = world.rank() == GroupRank(1);
    Pages in(kBytes), out(kBytes);
    in.numbers()[0] = 1;
    if (!guilty) done.wait();
    WorkPtr work = world.AllReduce(in.data(), out.data(), kCount, DataType::kInt32, ReduceOp::kSum);
    if (guilty) {
      misdeed(in, out);
      done.count_down();
    }
    const absl::Status own = work->Wait();
    EXPECT_FALSE(guilty && own.ok());
    // The others may have had all they needed; the communicator is over for them as well.
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (world.status().ok() && absl::Now() < end) poll(nullptr, 0, 1);
    const absl::Status found = world.status();
    EXPECT_EQ(found.code(), absl::StatusCode::kFailedPrecondition) << found;
    EXPECT_EQ(FailureOf(found).rank, 1);
    for (const std::string& part : {std::string("rank 1, collective #0, all_reduce("), expected}) {
      EXPECT_THAT(std::string(found.message()), HasSubstr(part));
    }
  });
}

TEST(BufferCheckTest, EveryRankHearsWhoChangedABufferTooEarly) {
  ExpectFoundEverywhere([](Pages& in, Pages&) { in.numbers()[70'000] = 9; },
                        "input buffer was changed while the call had it at byte 280000 of 400000");
  ExpectFoundEverywhere([](Pages&, Pages& out) { out.numbers()[3] = 9; },
                        "output buffer was changed while the call had it at byte 12 of 400000");
}

TEST(BufferCheckTest, EveryRankHearsWhoFreedABufferTooEarly) {
  ExpectFoundEverywhere([](Pages& in, Pages&) { in.Free(); },
                        "input buffer was freed: its memory is gone at byte 0 of 400000");
  ExpectFoundEverywhere([](Pages&, Pages& out) { out.Free(); },
                        "output buffer was freed: its memory is gone at byte 0 of 400000");
}

TEST(BufferCheckTest, AMessagesBufferIsLookedAtAsWell) {
  std::latch done(1);
  RunWorld(2, {"verify.buffers=true", "collective.timeout=60s"}, [&](Communicator& world) {
    Pages data(kBytes);
    if (world.rank() == GroupRank(0)) {
      WorkPtr send = world.Send(data.data(), kBytes, GroupRank(1), 5);
      data.numbers()[1] = 1;
      done.count_down();
      const absl::Status found = send->Wait();
      EXPECT_THAT(std::string(found.message()), HasSubstr("input buffer was changed"));
      EXPECT_THAT(std::string(found.message()), HasSubstr("at byte 4 of 400000"));
      EXPECT_THAT(std::string(found.message()), HasSubstr("rank 0, send of 400000 bytes"));
    } else {
      done.wait();
      (void)world.Receive(data.data(), kBytes, GroupRank(0), 5)->Wait();
    }
  });
}

}  // namespace
}  // namespace weft::collectives
