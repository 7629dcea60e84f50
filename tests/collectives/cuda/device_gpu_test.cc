// What needs a GPU: streams, events, and NCCL with one rank.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "collectives/cuda/device.h"
#include "collectives/data_type.h"

namespace weft::collectives {
namespace {

class DeviceGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Device> device = Device::Load();
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *device;
    ASSERT_EQ(calls().SetDevice(0), 0) << calls().LastError();
  }
  const WeftDeviceTable& calls() { return device_->calls(); }
  std::optional<Device> device_;
};

#define ASSERT_CALL(expression) ASSERT_EQ(expression, 0) << calls().LastError()

TEST_F(DeviceGpuTest, CopiesThroughDeviceMemoryInStreamOrder) {
  constexpr size_t kSize = 1 << 20;
  void* host = nullptr;
  void* device = nullptr;
  WeftStream* first = nullptr;
  WeftStream* second = nullptr;
  WeftEvent* start = nullptr;
  WeftEvent* copied = nullptr;
  ASSERT_CALL(calls().AllocatePinned(&host, 2 * kSize));
  ASSERT_CALL(calls().Allocate(&device, kSize));
  ASSERT_CALL(calls().StreamCreate(&first, 0));
  ASSERT_CALL(calls().StreamCreate(&second, 1));
  ASSERT_CALL(calls().EventCreate(&start));
  ASSERT_CALL(calls().EventCreate(&copied));
  auto* bytes = static_cast<unsigned char*>(host);
  std::memset(bytes, 0x5A, kSize);
  std::memset(bytes + kSize, 0, kSize);

  ASSERT_CALL(calls().EventRecord(start, first));
  ASSERT_CALL(calls().CopyAsync(device, bytes, kSize, first));
  ASSERT_CALL(calls().EventRecord(copied, first));
  ASSERT_CALL(calls().StreamWaitEvent(second, copied));
  ASSERT_CALL(calls().CopyAsync(bytes + kSize, device, kSize, second));
  ASSERT_CALL(calls().StreamSynchronize(second));

  EXPECT_EQ(std::memcmp(bytes, bytes + kSize, kSize), 0);
  int done = 0;
  ASSERT_CALL(calls().EventQuery(copied, &done));
  EXPECT_EQ(done, 1);
  float milliseconds = -1;
  ASSERT_CALL(calls().EventElapsed(start, copied, &milliseconds));
  EXPECT_GT(milliseconds, 0);
  ASSERT_CALL(calls().EventDestroy(start));
  ASSERT_CALL(calls().EventDestroy(copied));
  ASSERT_CALL(calls().StreamDestroy(first));
  ASSERT_CALL(calls().StreamDestroy(second));
  ASSERT_CALL(calls().Free(device));
  ASSERT_CALL(calls().FreePinned(host));
}

TEST_F(DeviceGpuTest, OneRankReducesWithNccl) {
  constexpr size_t kCount = 1000;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i);
  std::vector<float> result(kCount, -1);
  uint8_t id[kWeftNcclIdBytes];
  WeftNcclCommunicator* communicator = nullptr;
  WeftStream* stream = nullptr;
  void* device = nullptr;
  ASSERT_CALL(calls().NcclUniqueId(id));
  ASSERT_CALL(calls().NcclInit(&communicator, 1, id, 1, 0));
  ASSERT_CALL(calls().StreamCreate(&stream, 1));
  ASSERT_CALL(calls().Allocate(&device, kCount * sizeof(float)));
  ASSERT_CALL(calls().CopyAsync(device, values.data(), kCount * sizeof(float), stream));
  ASSERT_CALL(calls().NcclAllReduce(communicator, device, device, kCount,
                                    static_cast<int>(DataType::kFloat32),
                                    static_cast<int>(ReduceOp::kSum), stream));
  ASSERT_CALL(calls().CopyAsync(result.data(), device, kCount * sizeof(float), stream));
  ASSERT_CALL(calls().StreamSynchronize(stream));
  EXPECT_EQ(result, values);
  EXPECT_EQ(calls().NcclAsyncError(communicator), 0);
  EXPECT_NE(calls().NcclAllReduce(communicator, device, device, kCount,
                                  static_cast<int>(DataType::kComplex64),
                                  static_cast<int>(ReduceOp::kSum), stream),
            0);
  ASSERT_CALL(calls().NcclDestroy(communicator));
  ASSERT_CALL(calls().StreamDestroy(stream));
  ASSERT_CALL(calls().Free(device));
}

TEST_F(DeviceGpuTest, CommunicatorsAreAbortedTogether) {
  std::vector<WeftNcclCommunicator*> communicators(3);
  for (WeftNcclCommunicator*& communicator : communicators) {
    uint8_t id[kWeftNcclIdBytes];
    ASSERT_CALL(calls().NcclUniqueId(id));
    ASSERT_CALL(calls().NcclInit(&communicator, 1, id, 1, 0));
  }
  ASSERT_CALL(calls().NcclAbort(communicators.data(), static_cast<int>(communicators.size())));
  ASSERT_CALL(calls().NcclAbort(nullptr, 0));
}

}  // namespace
}  // namespace weft::collectives
