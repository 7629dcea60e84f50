// The messages of one connection: sizes, tags and groups, drawn from a seed so that both ranks know
// them, and the bytes of each message, by which any buffer can be checked.
#ifndef WEFT_TOOLS_NCCL_HARNESS_PLAN_H_
#define WEFT_TOOLS_NCCL_HARNESS_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::harness {

struct Message {
  size_t size = 0;
  size_t posted = 0;  // of the receive; at least `size`
  int tag = 0;
};

// Messages [first, first + count) are received by one call.
struct Group {
  size_t first = 0, count = 1;
};

struct Plan {
  uint64_t key = 0;  // of the bytes
  std::vector<Message> messages;
  std::vector<Group> groups;
  std::vector<size_t> send_order;  // within a group, any
  size_t posted_max = 0;
};

struct PlanOptions {
  uint64_t seed = 1, stream = 0;
  int count = 100;
  size_t size_max = 1 << 20;  // sizes from 0 to this, all magnitudes alike
  int group_max = 1;
  int group_messages_max = 8;
};
Plan RandomPlan(const PlanOptions& options);
// All alike, one by one.
Plan EvenPlan(uint64_t seed, uint64_t stream, int count, size_t size);

// Message `index` of the plan with this key.
void FillPattern(uint64_t key, size_t index, std::byte* data, size_t size);
// How many bytes differ.
size_t CountWrong(uint64_t key, size_t index, const std::byte* data, size_t size);

// What a sender writes over a buffer that it was told is free.
inline constexpr std::byte kScribble{0xEE};

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_PLAN_H_
