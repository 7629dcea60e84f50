// Which registrations of memory there are, and for how long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "net/verbs/entry_ring.h"
#include "net/verbs/memory.h"
#include "net/verbs/own_pages.h"
#include "net/verbs/rails.h"
#include "tests/net/verbs/gpu_memory.h"
#include "tests/net/verbs/remapped.h"
#include "tests/net/verbs/scripted_nic.h"
#include "tests/net/verbs/world.h"

namespace weft::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kPage = 4096;

// A cache with one device, and whole pages.
class VerbsMemory : public testing::Test {
 protected:
  explicit VerbsMemory(size_t pages = 16)
      : nic_(fabric.MakeNic({ScriptedDeviceOptions{}})), memory_((pages + 1) * kPage) {
    device_ = *nic_->Open("scripted0");
    cache_.emplace(std::vector<NicDevice*>{device_.get()}, true);
    page = memory_.data() + (kPage - reinterpret_cast<uintptr_t>(memory_.data()) % kPage);
  }

  ScriptedFabric fabric;
  std::byte* page = nullptr;  // the first of them
  MemoryCache& cache() { return *cache_; }

 private:
  std::unique_ptr<Nic> nic_;
  std::unique_ptr<NicDevice> device_;
  std::vector<std::byte> memory_;
  std::optional<MemoryCache> cache_;
};

TEST_F(VerbsMemory, OverlappingRegistrationsAreCountedAndNoneIsKept) {
  const size_t bytes = 16 * kPage;
  auto whole = cache().Acquire(page, bytes);
  auto part = cache().Acquire(page + 5000, 100);
  ASSERT_TRUE(whole.ok() && part.ok());
  EXPECT_EQ(*whole, *part);
  EXPECT_EQ(fabric.registrations(), 1u);
  cache().Release(*whole, page, bytes);
  EXPECT_EQ(cache().Find(page + 5000, 100), *part) << "still in use";
  cache().Release(*part, page + 5000, 100);
  EXPECT_EQ(cache().Find(page + 5000, 1), nullptr);
  EXPECT_EQ(fabric.registrations(), 0u);
  // A longer one that begins before a shorter one is found past it.
  auto small = cache().Acquire(page + 8192, 10);
  auto large = cache().Acquire(page, bytes);
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(cache().Find(page + 50000, 1000), *large);
}

// What its owner has given back may be mapped anew: its registration goes on for who uses another
// part, but is good for nothing else.
TEST_F(VerbsMemory, ARegistrationIsGoodForWhatItsUsersHoldAlone) {
  const MemoryCache::Entry* whole = *cache().Acquire(page, 10 * kPage);
  const MemoryCache::Entry* part = *cache().Acquire(page + 9 * kPage + 100, 100);
  ASSERT_EQ(whole, part);
  cache().Release(whole, page, 10 * kPage);
  EXPECT_EQ(cache().Find(page + 9 * kPage + 100, 100), part);
  EXPECT_EQ(cache().Find(page + kPage, 100), nullptr);
  const MemoryCache::Entry* anew = *cache().Acquire(page, 4 * kPage);
  EXPECT_NE(anew, whole);
  EXPECT_EQ(cache().Find(page + kPage, 100), anew);
  // The page of what is in use has not gone.
  EXPECT_EQ(*cache().Acquire(page + 9 * kPage + 2000, 100), part);
}

// Else each operation on what lies beside a link's ring would leave a registration until the end.
TEST_F(VerbsMemory, NeighboursOnAPageDoNotKeepARegistration) {
  const MemoryCache::Entry* ring = *cache().Acquire(page, 3 * kPage + 100, false);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const MemoryCache::Entry* beside = *cache().Acquire(page + 3 * kPage + 100, 5 * kPage);
    EXPECT_NE(beside, ring);
    EXPECT_EQ(fabric.registrations(), 2u);
    cache().Release(beside, page + 3 * kPage + 100, 5 * kPage);
    EXPECT_EQ(fabric.registrations(), 1u);
  }
}

TEST_F(VerbsMemory, WhatIsForLaterIsRegisteredWhenADeviceIsToBeAtIt) {
  const MemoryCache::Entry* small = *cache().AcquireForLater(page + 100, 1000);
  EXPECT_EQ(cache().Find(page + 100, 1000), small);
  EXPECT_EQ(fabric.registrations(), 0u);
  fabric.set_on_call([](const std::string& call, const std::string& device) {
    return call == "register"
               ? absl::UnavailableError(absl::StrCat("ibv_reg_mr on ", device, ": scripted"))
               : absl::OkStatus();
  });
  EXPECT_THAT(std::string(cache().FindRegistered(page + 100, 1000).status().message()),
              AllOf(HasSubstr("register 4096 bytes"), HasSubstr("ibv_reg_mr")));
  fabric.set_on_call(nullptr);
  EXPECT_EQ(*cache().FindRegistered(page + 100, 1000), small);
  EXPECT_EQ(*cache().FindRegistered(page + 5000, 1), nullptr);
  EXPECT_EQ(fabric.registrations(), 1u);
  cache().Release(small, page + 100, 1000);
  EXPECT_EQ(fabric.registrations(), 0u);
  // One that is there is taken before one that would have to be made.
  cache().AcquireForLater(page + 100, 1000).IgnoreError();
  const MemoryCache::Entry* large = *cache().Acquire(page, 3 * kPage);
  EXPECT_EQ(*cache().FindRegistered(page + 100, 1000), large);
  EXPECT_EQ(fabric.registrations(), 1u);
}

// A device may be at bytes by the keys of another registration, which Find() took: it stays valid
// until their user releases them too, and is given to nobody else.
TEST_F(VerbsMemory, RegistrationsThatShareBytesStayValidUntilBothAreReleased) {
  const MemoryCache::Entry* small = *cache().Acquire(page + 100, 200);
  const MemoryCache::Entry* large = *cache().Acquire(page, 3 * kPage);
  ASSERT_NE(small, large);
  ASSERT_EQ(cache().Find(page + 100, 200), large) << "the newest that holds it";
  cache().Release(large, page, 3 * kPage);
  EXPECT_EQ(fabric.registrations(), 2u);
  EXPECT_EQ(cache().Find(page + 100, 200), small);
  EXPECT_EQ(cache().Find(page + kPage, 10), nullptr) << "pages that were given back";
  const MemoryCache::Entry* again = *cache().Acquire(page + kPage, kPage);
  EXPECT_NE(again, large);
  EXPECT_EQ(fabric.registrations(), 3u);
  cache().Release(small, page + 100, 200);
  EXPECT_EQ(fabric.registrations(), 2u) << "the large one's bytes are in use again";
  cache().Release(again, page + kPage, kPage);
  EXPECT_EQ(fabric.registrations(), 0u);
}

// ---- Of a link

// Sends `from` to `to`, whole, each registered for that alone; "" or what went wrong.
std::string SendOnce(World& world, Remapped& from, Remapped& to, std::byte fill) {
  Region from_region = *world.a->transport().Register(from.data(), from.size());
  Region to_region = *world.b->transport().Register(to.data(), to.size());
  std::memset(from.data(), static_cast<int>(fill), from.size());
  Request send, receive;
  if (world.b->accepted->PostReceive({1, 0}, {to_region.view()}, &receive) != Posted::kAccepted ||
      world.a->out->PostSend({1, 0}, from_region.view(), &send) != Posted::kAccepted) {
    return "not posted";
  }
  if (!world.Until([&] { return send.done() && receive.done(); })) return "not done";
  if (!send.status().ok() || !receive.status().ok()) return std::string(send.status().message());
  for (size_t i = 0; i < to.size(); ++i) {
    if (to.data()[i] != fill)
      return absl::StrCat("byte ", i, " is ", static_cast<int>(to.data()[i]));
  }
  return "";
}

TEST(VerbsMemoryOfLinks, MessagesGoToAndFromWhatIsMappedWhenTheyAreRegistered) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  Remapped from(256 << 10), to(256 << 10);
  for (int round = 1; round < 4; ++round) {
    EXPECT_EQ(SendOnce(world, from, to, static_cast<std::byte>(round)), "") << round;
    from.MapAnew();
    to.MapAnew();
  }
}

// The scripted devices are as real ones are: this is what stale registrations do.
TEST(VerbsMemoryOfLinks, ARegistrationDoesNotFollowWhatIsMappedAnew) {
  World world(QuickWorld());
  ASSERT_TRUE(world.Connect());
  Remapped from(256 << 10), to(256 << 10);
  const Region stale = *world.b->transport().Register(to.data(), to.size());
  to.MapAnew();
  EXPECT_THAT(SendOnce(world, from, to, std::byte{7}), HasSubstr("byte 0 is 0"));
}

// A forked child has none of the pages that stay registered, nor what else would lie on them.
TEST(VerbsMemoryOfLinks, WhatStaysRegisteredHasPagesOfItsOwn) {
  ScriptedFabric fabric;
  ScriptedDeviceOptions device;
  device.address = 0x0a010001;
  auto rails = Rails::Open(fabric.MakeNic({device}), VerbsOptions{.eager_max = 4096});
  ASSERT_TRUE(rails.ok()) << rails.status();
  EntryRing ring(**rails);
  ASSERT_TRUE(ring.Open(/*leads=*/true).ok());
  Control hello;
  ring.Describe(&hello);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(hello.ring % page, 0u) << "the heap's objects are on its first page";
  for (size_t bytes : {size_t{4}, size_t{page}}) {
    auto pages = MapOwnPages(bytes);
    ASSERT_TRUE(pages.ok()) << pages.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pages->get()) % page, 0u);
    EXPECT_EQ(pages->get()[bytes - 1], std::byte{0});
  }
}

TEST(VerbsMemoryOfLinks, WhatGoesEagerlyIsNotRegistered) {
  for (const bool eager : {true, false}) {
    int registered = 0;
    WorldOptions options = QuickWorld();
    options.settings.push_back(eager ? "verbs.eager_max=4KiB" : "verbs.eager_max=0");
    World world(options);
    ASSERT_TRUE(world.Connect());
    for (int turn = 0; turn < 100; ++turn) world.Turn();
    world.fabric.set_on_call([&](const std::string& call, const std::string&) {
      registered += call == "register" ? 1 : 0;
      return absl::OkStatus();
    });
    Remapped from(4096), to(4096);
    EXPECT_EQ(SendOnce(world, from, to, std::byte{1}), "");
    EXPECT_EQ(registered, eager ? 0 : 4) << "two ends, two devices each";
  }
}

// ---- Of GPUs

class GpuRegistrations : public testing::Test {
 protected:
  GpuRegistrations() : nic_(fabric_.MakeNic({ScriptedDeviceOptions{}})) {
    device_ = *nic_->Open("scripted0");
    cache_.emplace(std::vector<NicDevice*>{device_.get()}, true);
  }

  ScriptedFabric fabric_;
  std::unique_ptr<Nic> nic_;
  std::unique_ptr<NicDevice> device_;
  std::optional<MemoryCache> cache_;
};

TEST_F(GpuRegistrations, AreSharedByTheDmaBufAndNotByItsDescriptor) {
  GpuMemory first(8192);
  auto one = cache_->AcquireDevice(first.memory());
  DeviceMemory again = first.memory();
  again.dma_buf = dup(first.fd());
  auto two = cache_->AcquireDevice(again);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(*one, *two) << "another descriptor of the same";
  EXPECT_EQ(fabric_.registrations(), 1u);
  close(again.dma_buf);

  // The same number and the same address, but other memory, as after a free and a malloc.
  const int number = first.fd();
  first.CloseDescriptor();
  GpuMemory second(8192, first.data());
  ASSERT_EQ(second.fd(), number);
  auto other = cache_->AcquireDevice(second.memory());
  ASSERT_TRUE(other.ok());
  EXPECT_NE(*other, *one);
  EXPECT_EQ(fabric_.registrations(), 2u);
  EXPECT_EQ(cache_->Find(second.data(), 100), *other) << "the older one is of memory that is gone";
}

TEST_F(GpuRegistrations, AreOfOneOffsetAndNeverOfHostMemory) {
  GpuMemory memory(8192);
  auto one = cache_->AcquireDevice({memory.data(), 4096, memory.fd(), 0});
  auto two = cache_->AcquireDevice({memory.data(), 4096, memory.fd(), 4096});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(*one, *two);
  auto host = cache_->Acquire(memory.data(), 4096);
  ASSERT_TRUE(host.ok());
  EXPECT_FALSE((*host)->is_device);
  auto by_address = cache_->AcquireDevice({memory.data(), 4096});
  ASSERT_TRUE(by_address.ok());
  EXPECT_TRUE((*by_address)->is_device);
  EXPECT_EQ(fabric_.registrations(), 4u);
  for (const auto* entry : {*one, *two, *host, *by_address}) {
    cache_->Release(entry, memory.data(), 4096);
  }
  EXPECT_EQ(fabric_.registrations(), 0u);
  EXPECT_FALSE(cache_->IsDevice(memory.data(), 1));
}

TEST_F(GpuRegistrations, ThatFailNameTheCallAndLeaveNothing) {
  GpuMemory memory(8192);
  fabric_.set_on_call([](const std::string& call, const std::string& device) {
    return call == "register_dma_buf"
               ? absl::UnavailableError(absl::StrCat("ibv_reg_dmabuf_mr on ", device, ": scripted"))
               : absl::OkStatus();
  });
  EXPECT_THAT(std::string(cache_->AcquireDevice(memory.memory()).status().message()),
              AllOf(HasSubstr("8192 bytes of a device's memory"), HasSubstr("ibv_reg_dmabuf_mr")));
  EXPECT_EQ(fabric_.registrations(), 0u);
  EXPECT_THAT(std::string(cache_->AcquireDevice({memory.data(), 100, 9999}).status().message()),
              HasSubstr("DMA-BUF 9999"));
}

}  // namespace
}  // namespace weft::net
