#include "tools/nccl_harness/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/random.h"

namespace weft::harness {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15;
constexpr int kPlainTag = 0x69;

uint64_t StartOf(uint64_t key, size_t index) {
  uint64_t state = key ^ (static_cast<uint64_t>(index) * 0xD1342543DE82EF95);
  return SplitMix64(state) | 1;
}

uint64_t WordAt(uint64_t start, size_t word) {
  uint64_t x = start + static_cast<uint64_t>(word) * kStep;
  return x ^ (x >> 29);
}

// Every magnitude is as likely as any other; a size in 16 is 0, one is the largest.
size_t DrawSize(Random& random, size_t size_max) {
  uint64_t kind = random.Below(16);
  if (kind == 0 || size_max == 0) return 0;
  if (kind == 1) return size_max;
  uint64_t bits = random.Below(static_cast<uint64_t>(std::bit_width(size_max)) + 1);
  uint64_t limit = std::min<uint64_t>(size_max, uint64_t{1} << bits);
  return 1 + random.Below(limit);
}

void Finish(Plan& plan) {
  for (const Message& message : plan.messages) {
    plan.posted_max = std::max(plan.posted_max, message.posted);
  }
}

}  // namespace

Plan RandomPlan(const PlanOptions& options) {
  Random random(options.seed, options.stream);
  Plan plan;
  plan.key = random();
  auto count = static_cast<size_t>(options.count);
  while (plan.messages.size() < count) {
    Group group{plan.messages.size(), 1};
    if (options.group_max > 1 && random.Below(2) == 0) {
      group.count = 1 + random.Below(static_cast<uint64_t>(options.group_max));
      group.count = std::min(group.count, count - group.first);
    }
    std::vector<size_t> order;
    for (size_t i = 0; i < group.count; ++i) {
      Message message;
      message.size = DrawSize(random, options.size_max);
      message.posted =
          message.size + (random.Below(2) == 0 ? 0 : random.Below(1 + message.size / 4));
      // A tag belongs to one place of a group, as NCCL's do: the rank that sends.
      message.tag = group.count == 1 ? kPlainTag : static_cast<int>(1 + i);
      plan.messages.push_back(message);
      order.push_back(group.first + i);
    }
    random.Shuffle(order);
    plan.send_order.insert(plan.send_order.end(), order.begin(), order.end());
    plan.groups.push_back(group);
  }
  Finish(plan);
  return plan;
}

Plan EvenPlan(uint64_t seed, uint64_t stream, int count, size_t size) {
  Random random(seed, stream);
  Plan plan;
  plan.key = random();
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    plan.messages.push_back({size, size, kPlainTag});
    plan.groups.push_back({i, 1});
    plan.send_order.push_back(i);
  }
  Finish(plan);
  return plan;
}

void FillPattern(uint64_t key, size_t index, std::byte* data, size_t size) {
  uint64_t start = StartOf(key, index);
  size_t words = size / 8;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = WordAt(start, i);
    std::memcpy(data + 8 * i, &word, 8);
  }
  uint64_t last = WordAt(start, words);
  std::memcpy(data + 8 * words, &last, size % 8);
}

size_t CountWrong(uint64_t key, size_t index, const std::byte* data, size_t size) {
  uint64_t start = StartOf(key, index);
  size_t wrong = 0;
  for (size_t at = 0; at < size; at += 8) {
    uint64_t expected = WordAt(start, at / 8), found = expected;
    size_t length = std::min<size_t>(8, size - at);
    std::memcpy(&found, data + at, length);
    if (found == expected) continue;
    for (size_t i = 0; i < length; ++i) {
      wrong += ((found ^ expected) >> (8 * i) & 0xFF) != 0 ? 1 : 0;
    }
  }
  return wrong;
}

}  // namespace weft::harness
