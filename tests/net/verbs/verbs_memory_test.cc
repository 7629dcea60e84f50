// Which registrations of memory there are, and for how long.
#include <gtest/gtest.h>

#include <vector>

#include "net/verbs/memory.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {
namespace {

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

}  // namespace
}  // namespace weft::net
