// What a layer keeps of a sequence, and what a token sees of it.
#include "trainer/model/key_value_cache.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace weft::train {
namespace {

// Two key-value heads of 2 numbers, for four heads.
ModelConfig Small() {
  ModelConfig model;
  model.layers = 1;
  model.hidden = 8;
  model.heads = 4;
  model.kv_hidden = 4;
  model.sequence = 6;
  return model;
}

// The first numbers of the keys of a key-value head that the token at `position` sees.
std::multiset<float> Seen(const KeyValueCache& cache, int64_t sequence, int64_t position,
                          int64_t head) {
  const float query = 0;
  float out = 0;
  const auto attention = cache.Attention<float>(sequence, position, &query, &out);
  EXPECT_EQ(attention.query, &query);
  EXPECT_EQ(attention.out, &out);
  std::multiset<float> seen;
  for (int64_t i = 0; i < attention.count; ++i) {
    const float key = attention.keys[head * attention.stride + i * 2];
    EXPECT_EQ(attention.values[head * attention.stride + i * 2 + 1], -key);
    seen.insert(key);
  }
  return seen;
}

// Head h of the token at p has the key p + 10 h + 100 s, where s is the sequence.
void KeepTokens(KeyValueCache& cache, int64_t sequence, int64_t tokens) {
  for (int64_t p = 0; p < tokens; ++p) {
    const float one = static_cast<float>(p + 100 * sequence), two = one + 10;
    const std::vector<float> key = {one, one, two, two}, value = {-one, -one, -two, -two};
    cache.Keep(sequence, p, key.data(), value.data());
  }
}

TEST(KeyValueCacheTest, ATokenSeesAllThatItsSequenceHasRead) {
  KeyValueCache cache(Small(), 0, /*sequences=*/2, at::kFloat);
  EXPECT_EQ(cache.room(), 6);
  KeepTokens(cache, 0, 3);
  KeepTokens(cache, 1, 2);
  EXPECT_EQ(Seen(cache, 0, 2, 0), (std::multiset<float>{0, 1, 2}));
  EXPECT_EQ(Seen(cache, 0, 2, 1), (std::multiset<float>{10, 11, 12}));
  EXPECT_EQ(Seen(cache, 1, 1, 1), (std::multiset<float>{110, 111}));
}

TEST(KeyValueCacheTest, AWindowKeepsTheNewestTokens) {
  ModelConfig model = Small();
  model.window = 4;
  KeyValueCache cache(model, 0, /*sequences=*/1, at::kFloat);
  EXPECT_EQ(cache.room(), 4);
  KeepTokens(cache, 0, 6);
  EXPECT_EQ(Seen(cache, 0, 5, 1), (std::multiset<float>{12, 13, 14, 15}));
}

}  // namespace
}  // namespace weft::train
