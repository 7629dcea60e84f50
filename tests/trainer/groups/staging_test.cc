// Copies of tensors for a communicator, with the CPU in the place of a device.
#include "trainer/groups/staging.h"

#include <gtest/gtest.h>

#include <vector>

#include "trainer/device/device.h"

namespace weft::train {
namespace {

class StagingTest : public ::testing::Test {
 protected:
  static void Choose(DeviceKind kind) { ASSERT_TRUE(OpenDevice(kind, 0).ok()); }
  void TearDown() override { Choose(DeviceKind::kCpu); }
  static void Arrive(const Arrivals& arrivals) {
    for (const auto& [host, tensor] : arrivals) tensor.copy_(host);
  }
};

TEST_F(StagingTest, TensorsOfTheCpusWayAreMovedWhereTheyLie) {
  const at::Tensor tensor = at::ones({3, 2});
  Arrivals arrivals;
  EXPECT_TRUE(Outgoing(tensor).is_same(tensor));
  EXPECT_TRUE(Incoming(tensor, arrivals).is_same(tensor));
  EXPECT_TRUE(InPlace(tensor, arrivals).is_same(tensor));
  const std::vector<size_t> counts = {1}, begins = {2};
  EXPECT_TRUE(OutgoingRows(tensor, {counts, begins}).is_same(tensor));
  EXPECT_TRUE(IncomingRows(tensor, {counts, begins}, arrivals).is_same(tensor));
  EXPECT_TRUE(arrivals.empty());
}

TEST_F(StagingTest, TensorsOfADevicesWayAreCopiedOutAndIn) {
  Choose(DeviceKind::kCpuAten);
  const at::Tensor sent = at::full({2}, 5.0), received = at::zeros({2}), both = at::full({2}, 7.0);
  Arrivals arrivals;
  const at::Tensor out = Outgoing(sent);
  EXPECT_FALSE(out.is_same(sent));
  EXPECT_TRUE(out.equal(sent));
  Incoming(received, arrivals).fill_(6.0);
  at::Tensor summed = InPlace(both, arrivals);
  EXPECT_TRUE(summed.equal(both));
  summed.fill_(8.0);
  EXPECT_TRUE(received.equal(at::zeros({2})));
  EXPECT_TRUE(both.equal(at::full({2}, 7.0)));
  Arrive(arrivals);
  EXPECT_TRUE(received.equal(at::full({2}, 6.0)));
  EXPECT_TRUE(both.equal(at::full({2}, 8.0)));
}

// The other rows may be in use.
TEST_F(StagingTest, OnlyRowsOfThePartsAreCopied) {
  Choose(DeviceKind::kCpuAten);
  const at::Tensor tensor = at::zeros({4, 2});
  const std::vector<size_t> counts = {1, 0, 2}, begins = {0, 1, 2};  // all but row 1
  Arrivals arrivals;
  IncomingRows(tensor, {counts, begins}, arrivals).fill_(3.0);
  EXPECT_EQ(arrivals.size(), 2U);
  Arrive(arrivals);
  EXPECT_TRUE(tensor.select(1, 0).equal(at::tensor({3.0F, 0.0F, 3.0F, 3.0F})));
  const at::Tensor out = OutgoingRows(tensor, {counts, begins});
  EXPECT_EQ(out.sizes(), tensor.sizes());
  EXPECT_TRUE(out.narrow(0, 2, 2).equal(tensor.narrow(0, 2, 2)));
  EXPECT_TRUE(out.narrow(0, 0, 1).equal(tensor.narrow(0, 0, 1)));
}

}  // namespace
}  // namespace weft::train
