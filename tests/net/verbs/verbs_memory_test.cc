// Which registrations of memory there are, and for how long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "net/verbs/memory.h"
#include "tests/net/verbs/gpu_memory.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(VerbsMemory, OverlappingRegistrationsAreCountedAndNoneIsKept) {
  ScriptedFabric fabric;
  auto nic = fabric.MakeNic({ScriptedDeviceOptions{}});
  auto device = nic->Open("scripted0");
  ASSERT_TRUE(device.ok());
  MemoryCache cache({device->get()}, true);
  std::vector<uint8_t> bytes(1 << 20);
  auto whole = cache.Acquire(bytes.data(), bytes.size());
  auto part = cache.Acquire(bytes.data() + 5000, 100);
  ASSERT_TRUE(whole.ok() && part.ok());
  EXPECT_EQ(*whole, *part);
  EXPECT_EQ(fabric.registrations(), 1u);
  cache.Release(*whole);
  EXPECT_EQ(cache.Find(bytes.data(), bytes.size()), *part) << "still in use";
  cache.Release(*part);
  EXPECT_EQ(cache.Find(bytes.data(), 1), nullptr);
  EXPECT_EQ(fabric.registrations(), 0u);
  // A longer one that begins before a shorter one is found past it.
  auto small = cache.Acquire(bytes.data() + 8192, 10);
  auto large = cache.Acquire(bytes.data(), bytes.size());
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(cache.Find(bytes.data() + 500000, 1000), *large);
}

// A device may be at a page by the keys of another registration, which Find() took: it stays valid
// until the memory that was asked for is released too, and is given to nobody else.
TEST(VerbsMemory, RegistrationsThatSharePagesStayValidUntilBothAreReleased) {
  ScriptedFabric fabric;
  auto nic = fabric.MakeNic({ScriptedDeviceOptions{}});
  auto device = nic->Open("scripted0");
  ASSERT_TRUE(device.ok());
  MemoryCache cache({device->get()}, true);
  std::vector<std::byte> memory(5 * 4096);
  std::byte* page = memory.data() + (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096);
  const MemoryCache::Entry* small = *cache.Acquire(page + 100, 200);
  const MemoryCache::Entry* large = *cache.Acquire(page, 3 * 4096);
  ASSERT_NE(small, large);
  ASSERT_EQ(cache.Find(page + 100, 200), large) << "the newest that holds it";
  cache.Release(large);
  EXPECT_EQ(fabric.registrations(), 2u);
  EXPECT_EQ(cache.Find(page + 100, 200), small);
  EXPECT_EQ(cache.Find(page + 4096, 10), nullptr) << "pages that were given back";
  const MemoryCache::Entry* again = *cache.Acquire(page + 4096, 4096);
  EXPECT_NE(again, large);
  EXPECT_EQ(fabric.registrations(), 3u);
  cache.Release(small);
  EXPECT_EQ(fabric.registrations(), 2u) << "the first one still shares a page";
  cache.Release(again);
  EXPECT_EQ(fabric.registrations(), 0u);
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
  for (const auto* entry : {*one, *two, *host, *by_address}) cache_->Release(entry);
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
