// The parts of shm that need no second process: rings, arena, matching, copies, segments.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
#include "net/matcher.h"
#include "net/shm/copy.h"
#include "net/shm/doorbell.h"
#include "net/shm/ring.h"
#include "net/shm/segment.h"

namespace weft::net::shm {
namespace {

struct PlainRing {
  explicit PlainRing(uint32_t count) : count(count), cells(new Cell[count]()) {}
  uint32_t count;
  std::unique_ptr<Cell[]> cells;
  ReaderLine line{};
};

// ---- Rings

TEST(CellRing, CarriesEveryCellAndItsStretchInOrderBetweenTwoThreads) {
  constexpr uint64_t kMessages = 30000;
  constexpr uint64_t kArena = 4096;
  PlainRing ring(16);
  std::vector<std::byte> arena(kArena);
  struct Body {
    uint64_t number, position, length;
  };
  std::thread writer([&] {
    CellWriter out(ring.cells.get(), ring.count, &ring.line);
    ArenaWriter places(kArena, ring.count);
    Random random(1);
    for (uint64_t n = 0; n < kMessages; ++n) {
      uint64_t length = random.Below(kArena / 2) + 1, position;
      while (out.Free(1) == 0) sched_yield();
      while ((position = places.Allocate(length)) == ArenaWriter::kNone) {
        sched_yield();
        out.Refresh();
        places.Release(out.consumed());
      }
      std::memset(arena.data() + position, static_cast<int>(n), length);
      Body body{n, position, length};
      std::memcpy(out.body(), &body, sizeof body);
      places.Publish(out.produced());
      out.Publish();
      places.Release(out.consumed());
    }
  });
  CellReader in(ring.cells.get(), ring.count, &ring.line);
  uint64_t wrong = 0;
  for (uint64_t n = 0; n < kMessages; ++n) {
    const std::byte* cell;
    while ((cell = in.Peek()) == nullptr) {
      in.Release();
      sched_yield();
    }
    Body body;
    CopyOnce(&body, cell, sizeof body);
    wrong += body.number != n;
    auto byte = static_cast<std::byte>(n);
    for (uint64_t i = 0; i < body.length; ++i) wrong += arena[body.position + i] != byte;
    in.Advance();
    if (n % 3 == 0) in.Release();
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(CellRing, AnImpossibleIndexIsSeen) {
  PlainRing ring(16);
  CellWriter out(ring.cells.get(), ring.count, &ring.line);
  out.Publish();
  out.Publish();
  ring.line.consumed = 2;
  out.Refresh();
  EXPECT_FALSE(out.corrupt());
  ring.line.consumed = 1;  // backwards
  out.Refresh();
  EXPECT_TRUE(out.corrupt());

  CellWriter other(ring.cells.get(), ring.count, &ring.line);
  other.Refresh();  // ahead of what was produced
  EXPECT_TRUE(other.corrupt());

  CellReader in(ring.cells.get(), ring.count, &ring.line);
  ring.cells[0].sequence = 17;  // of the next round, while the first is not read yet
  EXPECT_EQ(in.Peek(), nullptr);
  EXPECT_TRUE(in.corrupt());
}

TEST(ArenaWriter, LiveStretchesNeverOverlapAndAlwaysComeFreeAgain) {
  constexpr uint64_t kBytes = 64 * 40;
  constexpr uint32_t kCells = 16;
  Random random(3);
  ArenaWriter arena(kBytes, kCells);
  std::deque<std::pair<uint64_t, uint64_t>> live;
  uint64_t produced = 0, consumed = 0, refused = 0;
  for (int step = 0; step < 20000; ++step) {
    uint64_t length = random.Below(kBytes / 2) + 1;
    bool can = arena.CanAllocate(length);
    uint64_t position = live.size() < kCells ? arena.Allocate(length) : ArenaWriter::kNone;
    if (position == ArenaWriter::kNone) {
      ++refused;
      ASSERT_FALSE(live.empty()) << "an empty arena refused " << length;
      live.pop_front();
      arena.Release(++consumed);
      continue;
    }
    ASSERT_TRUE(can);
    ASSERT_EQ(position % 64, 0u);
    ASSERT_LE(position + length, kBytes);
    for (auto [start, size] : live) {
      ASSERT_TRUE(position + length <= start || start + size <= position);
    }
    live.emplace_back(position, length);
    arena.Publish(produced++);
  }
  EXPECT_GT(refused, 1000u);
}

// ---- Matching

TEST(Matcher, AgreesWithAMapOfQueues) {
  Random random(5);
  Matcher<uint64_t, int> matcher;
  std::map<uint64_t, std::deque<uint64_t>> as;
  std::map<uint64_t, std::deque<int>> bs;
  uint64_t next = 0;
  for (int step = 0; step < 200000; ++step) {
    // Tags that collide in the table as well as tags that do not; phases that pile up either kind.
    uint64_t tag = random.Below(300) * (random.Below(2) == 0 ? 1 : uint64_t{1} << 44);
    bool offers_a = random.Below(100) < (step / 20000 % 2 == 0 ? 65u : 35u);
    if (offers_a) {
      auto match = matcher.OfferA(tag, ++next);
      auto& waiting = bs[tag];
      ASSERT_EQ(match.has_value(), !waiting.empty());
      if (match) {
        ASSERT_EQ(*match, waiting.front());
        waiting.pop_front();
      } else {
        as[tag].push_back(next);
      }
    } else if (const int* first = matcher.FirstB(tag); first != nullptr && random.Below(4) == 0) {
      ASSERT_FALSE(bs[tag].empty());
      ASSERT_EQ(*first, bs[tag].front());
      matcher.DropFirstB(tag);
      bs[tag].pop_front();
    } else {
      ASSERT_EQ(first != nullptr, !bs[tag].empty());
      auto match = matcher.OfferB(tag, static_cast<int>(++next));
      auto& waiting = as[tag];
      ASSERT_EQ(match.has_value(), !waiting.empty());
      if (match) {
        ASSERT_EQ(*match, waiting.front());
        waiting.pop_front();
      } else {
        bs[tag].push_back(static_cast<int>(next));
      }
    }
    ASSERT_EQ(matcher.Waits(tag), !as[tag].empty() || !bs[tag].empty());
  }
  std::vector<int> left, drained;
  for (auto& [tag, queue] : bs) left.insert(left.end(), queue.begin(), queue.end());
  EXPECT_EQ(matcher.waiting_b(), left.size());
  matcher.DrainB([&](int b) { drained.push_back(b); });
  std::sort(left.begin(), left.end());
  std::sort(drained.begin(), drained.end());
  EXPECT_EQ(left, drained);
  EXPECT_EQ(matcher.waiting_b(), 0u);
  size_t as_left = 0;
  for (auto& [tag, queue] : as) {
    for (uint64_t a : queue) {
      ASSERT_EQ(matcher.OfferB(tag, 0), a);
      ++as_left;
    }
  }
  EXPECT_GT(as_left, 0u);
}

// ---- Copies

TEST(CopyAround, EqualsMemcpyAtEveryAlignment) {
  for (CopyFn copy : {CopyFn{CopyAround}, CopyAroundAvx2(), CopyAroundAvx512()}) {
    if (copy == nullptr) continue;
    std::vector<std::byte> from(2048), to(2048);
    Random random(2);
    for (std::byte& b : from) b = static_cast<std::byte>(random());
    for (int round = 0; round < 3000; ++round) {
      size_t source = random.Below(128), target = random.Below(128), bytes = random.Below(1700);
      std::fill(to.begin(), to.end(), std::byte{0xEE});
      copy(to.data() + target, from.data() + source, bytes);
      ASSERT_EQ(std::memcmp(to.data() + target, from.data() + source, bytes), 0);
      ASSERT_EQ(to[target + bytes], std::byte{0xEE});
      ASSERT_TRUE(target == 0 || to[target - 1] == std::byte{0xEE});
    }
  }
}

// ---- Memory that a peer passes

constexpr Geometry kGeometry{16, 16, 4096, 16384};

absl::Status AdoptAfter(const std::function<void(SegmentHeader*)>& change) {
  FileDescriptor fd;
  auto segment = Segment::Create(kGeometry, &fd);
  EXPECT_TRUE(segment.ok()) << segment.status();
  auto mapping = Mapping::Map(fd.get(), kPageBytes);
  change(reinterpret_cast<SegmentHeader*>(mapping->data()));
  return Segment::Adopt(fd.get()).status();
}

TEST(Segment, IsAdoptedAsItWasCreated) {
  FileDescriptor fd;
  auto made = Segment::Create(kGeometry, &fd);
  ASSERT_TRUE(made.ok());
  auto adopted = Segment::Adopt(fd.get());
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ(adopted->geometry(), kGeometry);
  made->arena()[kGeometry.arena_bytes - 1] = std::byte{9};
  EXPECT_EQ(adopted->arena()[kGeometry.arena_bytes - 1], std::byte{9});
}

TEST(Segment, EveryBadHeaderIsRefused) {
  EXPECT_TRUE(AdoptAfter([](SegmentHeader*) {}).ok());
  EXPECT_EQ(AdoptAfter([](SegmentHeader* h) { h->magic ^= 1; }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptAfter([](SegmentHeader* h) { h->version += 1; }).code(),
            absl::StatusCode::kFailedPrecondition);
  const std::vector<std::function<void(Geometry*)>> changes = {
      [](Geometry* g) { g->forward_cells = 17; },
      [](Geometry* g) { g->forward_cells = 0; },
      [](Geometry* g) { g->forward_cells = 32; },  // allowed, but not this size of segment
      [](Geometry* g) { g->backward_cells = 1u << 31; },
      [](Geometry* g) { g->piece_bytes = 0; },
      [](Geometry* g) { g->piece_bytes = 4097; },
      [](Geometry* g) { g->piece_bytes = 16384; },
      [](Geometry* g) { g->arena_bytes = 16384 + 64; },
      [](Geometry* g) { g->arena_bytes = ~uint64_t{63}; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    absl::Status status = AdoptAfter([&](SegmentHeader* h) { changes[i](&h->geometry); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i << ": " << status;
  }
}

TEST(Segment, MemoryThatCouldStillShrinkIsRefused) {
  FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 1 << 20), 0);
  EXPECT_EQ(Segment::Adopt(fd.get()).status().code(), absl::StatusCode::kInvalidArgument);
  FileDescriptor null(dup(STDERR_FILENO));
  EXPECT_EQ(Segment::Adopt(null.get()).status().code(), absl::StatusCode::kInvalidArgument);
}

// Kernels that are set to make no other (vm.memfd_noexec 2) make this.
TEST(Segment, ItsMemoryIsNotExecutableWhereTheKernelKnowsThat) {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL
  constexpr int kSealExec = 0x20;      // F_SEAL_EXEC
  if (FileDescriptor(memfd_create("test", MFD_CLOEXEC | kNoExecSeal)).get() < 0) {
    GTEST_SKIP() << "a kernel before 6.3";
  }
  FileDescriptor fd = *CreateSealedMemory("test", kPageBytes);
  EXPECT_NE(fcntl(fd.get(), F_GET_SEALS) & kSealExec, 0);
}

TEST(Doorbell, OnlyAnEventfdAndAPageAreTakenFromAPeer) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  auto adopt = [](int event, int page) {
    return PeerBell::Adopt(FileDescriptor(dup(event)), page);
  };
  EXPECT_TRUE(adopt(bell->event_fd(), bell->page_fd()).ok());
  EXPECT_FALSE(adopt(bell->page_fd(), bell->page_fd()).ok());
  EXPECT_FALSE(adopt(bell->event_fd(), bell->event_fd()).ok());
  FileDescriptor large = *CreateSealedMemory("test", 2 * kPageBytes);
  EXPECT_FALSE(adopt(bell->event_fd(), large.get()).ok());
}

}  // namespace
}  // namespace weft::net::shm
