// One message of 1 GiB: past every 32-bit and signed limit on the way but the last one.
#include "tests/net/conformance.h"

namespace weft::net {
namespace {

class Large : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transport, Large, kAllTransports, KindName);

TEST_P(Large, AGibibyteArrivesWhole) {
  constexpr size_t kBytes = size_t{1} << 30;
  Request send, receive;
  Pair pair(GetParam());
  Buffer from(pair.a.transport(), kBytes), to(pair.b.transport(), kBytes);
  auto* out = reinterpret_cast<uint64_t*>(from.data());
  for (size_t i = 0; i < kBytes / 8; ++i) out[i] = i * 0x9E3779B97F4A7C15ULL;
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  ASSERT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(receive.bytes(), kBytes);
  const auto* in = reinterpret_cast<const uint64_t*>(to.data());
  size_t wrong = 0;
  for (size_t i = 0; i < kBytes / 8; ++i) wrong += in[i] != i * 0x9E3779B97F4A7C15ULL;
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace weft::net
