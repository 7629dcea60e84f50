#include "collectives/store/protocol/ascending_map.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "base/random.h"

namespace weft::collectives {
namespace {

using Plain = std::map<uint64_t, std::string>;

Plain Contents(const AscendingMap<std::string>& map) {
  Plain all;
  map.ForEach([&](uint64_t key, const std::string& value) { all.emplace(key, value); });
  return all;
}

// Against a map of the standard library, with keys that mostly ascend and mostly leave in order.
TEST(AscendingMapTest, HoldsWhatAMapHolds) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    AscendingMap<std::string> map;
    Plain plain;
    uint64_t next = 1;
    for (int step = 0; step < 400; ++step) {
      uint64_t key = random.Below(8) == 0 ? random.Below(next + 2) : next++;
      switch (random.Below(6)) {
        case 0:
        case 1:
        case 2: {
          std::string value = std::to_string(step);
          EXPECT_EQ(map.Insert(key, value), plain.emplace(key, value).second);
          break;
        }
        case 3: {
          auto taken = map.Take(key);
          EXPECT_EQ(taken.has_value(), plain.count(key) != 0);
          EXPECT_EQ(taken.value_or(""), plain[key]);
          plain.erase(key);
          break;
        }
        case 4: {
          uint64_t end = key > 30 ? key - 30 : 0;
          Plain below(plain.begin(), plain.lower_bound(end));
          size_t visited = 0;
          map.EraseBelow(end, [&](const std::string&) { ++visited; });
          EXPECT_EQ(visited, below.size());
          plain.erase(plain.begin(), plain.lower_bound(end));
          break;
        }
        default: {
          const std::string* found = map.Find(key);
          ASSERT_EQ(found != nullptr, plain.count(key) != 0);
          if (found != nullptr) {
            EXPECT_EQ(*found, plain[key]);
          }
        }
      }
      ASSERT_EQ(map.size(), plain.size());
      if (!plain.empty()) {
        ASSERT_EQ(map.first_key(), plain.begin()->first);
      }
      ASSERT_EQ(Contents(map), plain) << "seed " << seed << " step " << step;
    }
  }
}

TEST(AscendingMapTest, OneOldEntryDoesNotKeepTheMemoryOfThoseAfterIt) {
  AscendingMap<std::string> map;
  map.Insert(1, "waits");
  for (uint64_t key = 2; key < 100'000; ++key) {
    map.Insert(key, "");
    map.Erase(key);
    ASSERT_LT(map.slots(), 100);
  }
  EXPECT_EQ(*map.Find(1), "waits");
}

}  // namespace
}  // namespace weft::collectives
