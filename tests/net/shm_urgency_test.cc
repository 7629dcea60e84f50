// A more urgent message goes before the rest of others that are under way, whether the sender
// copies them or the receiver reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

constexpr size_t kStateBytes = 32 << 20;  // many times what the arena holds, or one turn reads
constexpr size_t kBytes = 1 << 20;        // more than what goes ahead of its receive

class ShmUrgency : public testing::TestWithParam<std::string> {};

TEST_P(ShmUrgency, TheMoreUrgentMessageIsThereFirst) {
  const std::vector<uint8_t> urgencies = {0, 2, 1, 2};
  std::vector<Request> sends(urgencies.size()), receives(urgencies.size());
  ShmPair pair({{"shm.single_copy", GetParam()}});
  std::vector<std::vector<std::byte>> out, in;
  for (size_t i = 0; i < urgencies.size(); ++i) {
    out.push_back(RandomBytes(i == 0 ? kStateBytes : kBytes, i));
    in.emplace_back(out[i].size());
  }
  const auto post = [&](size_t i) {
    ASSERT_EQ(pair.receiver->PostReceive({i, 0}, {View(*pair.b.transport, in[i])}, &receives[i]),
              Posted::kAccepted);
    ASSERT_EQ(pair.sender->PostSend({i, 0}, {View(*pair.a.transport, out[i]), false, urgencies[i]},
                                    &sends[i]),
              Posted::kAccepted);
  };
  post(0);
  for (int turn = 0; turn < 3; ++turn) {
    pair.a.transport->Progress(Now());
    pair.b.transport->Progress(Now());
  }
  ASSERT_FALSE(receives[0].done());  // under way
  for (size_t i = 1; i < urgencies.size(); ++i) post(i);
  std::vector<size_t> order;
  ASSERT_TRUE(pair.Pump([&] {
    for (size_t i = 0; i < receives.size(); ++i) {
      const bool is_known = std::find(order.begin(), order.end(), i) != order.end();
      if (receives[i].done() && !is_known) order.push_back(i);
    }
    return order.size() == receives.size() &&
           std::all_of(sends.begin(), sends.end(), [](const Request& r) { return r.done(); });
  }));
  EXPECT_EQ(order, (std::vector<size_t>{1, 3, 2, 0}));
  for (size_t i = 0; i < urgencies.size(); ++i) {
    EXPECT_TRUE(sends[i].status().ok()) << sends[i].status();
    EXPECT_TRUE(receives[i].status().ok()) << receives[i].status();
    EXPECT_TRUE(in[i] == out[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(CopiedOrRead, ShmUrgency, testing::Values("off", "on"),
                         [](const auto& mode) { return mode.param == "on" ? "Read" : "Copied"; });

}  // namespace
}  // namespace weft::net
