// Memory that peers map: messages are stored and reduced from where they lie, and every way in
// which that may not be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "net/shm/shared_memory.h"
#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

constexpr size_t kBytes = 8 << 20;

void Xor(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = local[i] ^ incoming[i];
}

// Mappings of such memory in this process, which is both sides here: one at its owner, one at each
// peer that has mapped it.
int Mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("weft-buffer") != std::string::npos ? 1 : 0;
  }
  return count;
}

RegionView ViewOf(Transport& transport, const std::shared_ptr<std::byte>& memory, size_t bytes) {
  return transport.Register(memory.get(), bytes)->view();
}

class ShmShared : public testing::Test {
 protected:
  void Start(size_t bytes = kBytes) {
    memory_ = shm::AllocateMemory(bytes);
    ASSERT_NE(memory_, nullptr);
    expected_ = RandomBytes(bytes, 3);
    std::memcpy(memory_.get(), expected_.data(), bytes);
    in_.assign(bytes, std::byte{0x11});
  }
  void Post(bool reduces = false, bool warm = false) {
    ReceiveTarget target{View(*pair_.b.transport, in_)};
    if (reduces) target.local = in_.data(), target.reduce = Xor;
    ASSERT_EQ(pair_.receiver->PostReceive({1, 2}, target, &receive_), Posted::kAccepted);
    const RegionView source = ViewOf(*pair_.a.transport, memory_, in_.size());
    ASSERT_EQ(pair_.sender->PostSend({1, 2}, {source, warm}, &send_), Posted::kAccepted);
  }
  void ExpectWhole(bool reduces = false) {
    ASSERT_TRUE(pair_.Pump([&] { return send_.done() && receive_.done(); }));
    ASSERT_TRUE(send_.status().ok() && receive_.status().ok())
        << send_.status() << receive_.status();
    if (reduces) {
      for (std::byte& byte : expected_) byte ^= std::byte{0x11};
    }
    EXPECT_TRUE(in_ == expected_);
  }

  ShmPair pair_;
  std::shared_ptr<std::byte> memory_;
  std::vector<std::byte> expected_, in_;
  Request send_, receive_;
};

TEST_F(ShmShared, IsReadAndReducedWithoutATurnOfTheSender) {
  for (bool reduces : {false, true}) {
    for (bool warm : {false, true}) {
      SCOPED_TRACE(testing::Message() << reduces << warm);
      Start();
      Post(reduces, warm);
      pair_.a.transport->Progress(Now());  // says where it lies
      ASSERT_TRUE(PumpUntil({&pair_.b}, [&] { return receive_.done(); }));
      EXPECT_FALSE(send_.done());
      ExpectWhole(reduces);
      EXPECT_EQ(Mappings(), 2);
    }
  }
}

TEST_F(ShmShared, APartOfItIsSentFromItsPlace) {
  Start();
  const size_t offset = 4096 + 12, bytes = 100'000;
  in_.assign(bytes, std::byte{});
  ReceiveTarget target{View(*pair_.b.transport, in_)};
  ASSERT_EQ(pair_.receiver->PostReceive({1, 2}, target, &receive_), Posted::kAccepted);
  const RegionView source = ViewOf(*pair_.a.transport, memory_, kBytes).Slice(offset, bytes);
  ASSERT_EQ(pair_.sender->PostSend({1, 2}, {source, false}, &send_), Posted::kAccepted);
  expected_ =
      std::vector<std::byte>(expected_.begin() + offset, expected_.begin() + offset + bytes);
  ExpectWhole();
}

TEST_F(ShmShared, WhatItsOwnerFreesIsUnmappedByItsPeers) {
  Start();
  Post();
  ExpectWhole();
  EXPECT_EQ(Mappings(), 2);
  memory_.reset();
  ASSERT_TRUE(pair_.Pump([&] { return Mappings() == 0; }));
  // Another at the same address is another.
  Start();
  Post();
  ExpectWhole();
}

TEST_F(ShmShared, FreedTooEarlyItIsStillWhole) {
  Start();
  Post(true);
  pair_.a.transport->Progress(Now());  // offered, and on its way over the socket
  memory_.reset();
  ExpectWhole(true);
}

TEST_F(ShmShared, WithoutADescriptorForItBytesGoThroughTheArena) {
  Start();
  Post(true);
  pair_.a.transport->Progress(Now());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 3;  // no new one; those that are open stay
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool done = pair_.Pump([&] { return send_.done() && receive_.done(); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(done);
  ExpectWhole(true);
  EXPECT_EQ(Mappings(), 1);
}

TEST_F(ShmShared, SmallMemoryAndMemoryWithoutDescriptorsIsOrdinary) {
  const std::shared_ptr<std::byte> small = shm::AllocateMemory(100);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(shm::SharedMemory::Find(small.get(), 100), nullptr);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  memory_ = shm::AllocateMemory(kBytes);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_NE(memory_, nullptr);
  EXPECT_EQ(memory_.get()[kBytes - 1], std::byte{0});
  EXPECT_EQ(shm::SharedMemory::Find(memory_.get(), kBytes), nullptr);
}

TEST(ShmSharedMemory, TakesNoMoreThanHalfOfTheDescriptors) {
  const int next = dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  close(next);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  for (const bool is_left : {true, false}) {
    rlimit low = limit;
    low.rlim_cur = static_cast<rlim_t>(2 * next + (is_left ? 2 : 0));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const std::shared_ptr<std::byte> memory = shm::AllocateMemory(kBytes);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(shm::SharedMemory::Find(memory.get(), kBytes) != nullptr, is_left);
  }
}

// One thread frees memory while another looks for an ordinary buffer above it, and so holds it for
// a moment: the last that does destroys it.
TEST(ShmSharedMemory, IsFreedWhileAnotherThreadLooksThere) {
  const auto body = [] {
    alarm(kAlarmSeconds);  // a hang
    std::atomic<const std::byte*> behind{nullptr};
    std::atomic<bool> over{false};
    std::thread looks([&] {
      while (!over) shm::SharedMemory::Find(behind, 1);
    });
    for (int i = 0; i < 20'000; ++i) {
      auto memory = shm::SharedMemory::Create(4096);
      if (!memory.ok()) _exit(1);
      behind = (*memory)->data() + (*memory)->bytes();
    }
    over = true;
    looks.join();
    _exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

struct Show {
  uint32_t magic = 0x52485357, share = 1;
  uint64_t bytes = 8192;
};

shm::Packet PacketOf(const Show& show, int fd) {
  shm::Packet made;
  made.bytes.assign(reinterpret_cast<const char*>(&show), sizeof show);
  if (fd >= 0) made.fds.emplace_back(fd);
  return made;
}

TEST(ShmSharesSeen, TakesNothingButSealedMemoryOfItsSizeOnce) {
  const auto packet = PacketOf;
  const auto sealed = [] {
    auto fd = shm::CreateSealedMemory("weft-test", 8192);
    EXPECT_TRUE(fd.ok());
    return dup(fd->get());
  };
  const auto unsealed = [] {
    const int fd = memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd, 8192), 0);
    return fd;
  };
  shm::SharesSeen seen;
  EXPECT_TRUE(seen.Take(packet({}, sealed())).ok());
  ASSERT_NE(seen.Find(1), nullptr);
  EXPECT_EQ(seen.Find(1)->bytes(), 8192u);
  const shm::Packet bad[] = {packet({}, sealed()),            // the same number twice
                             packet({.share = 0}, sealed()),  //
                             packet({.magic = 1, .share = 2}, sealed()),
                             packet({.share = 2}, unsealed()),  // it could shrink
                             packet({.share = 2, .bytes = 4096}, sealed()),
                             packet({.share = 2}, -1)};
  for (const shm::Packet& one : bad) {
    EXPECT_EQ(seen.Take(one).code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(seen.Find(2), nullptr);
  seen.Drop(1);
  EXPECT_EQ(seen.Find(1), nullptr);
}

// What the peer withdraws by the ring is known later than what it shows by the socket.
TEST(ShmSharesSeen, TakesMoreThanAPeerShowsAtATimeAndNoEndOfThem) {
  // All that it shows, and as many withdrawals as a ring holds.
  EXPECT_GE(shm::SharesSeen::kMost, shm::SharesShown::kMost + shm::Geometry().forward_cells);
  auto fd = shm::CreateSealedMemory("weft-test", 8192);
  ASSERT_TRUE(fd.ok());
  shm::SharesSeen seen;
  for (uint32_t share = 1; share <= shm::SharesSeen::kMost; ++share) {
    ASSERT_TRUE(seen.Take(PacketOf({.share = share}, dup(fd->get()))).ok()) << share;
  }
  const uint32_t next = shm::SharesSeen::kMost + 1;
  EXPECT_FALSE(seen.Take(PacketOf({.share = next}, dup(fd->get()))).ok());
  seen.Drop(1);
  EXPECT_TRUE(seen.Take(PacketOf({.share = next}, dup(fd->get()))).ok());
}

}  // namespace
}  // namespace weft::net
