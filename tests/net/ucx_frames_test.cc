// Frames of a ucx link written by hand, on its connection: lies break the link they came on and no
// other. The raw peer is rank 0; rank 2 is a healthy one beside it.
#include <gmock/gmock.h>

#include <string>

#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

// UCX knows no length of an address, and would read behind an empty one.
TEST(UcxFrames, AnEmptyWorkerAddressBreaksThatLinkAndNoOther) {
#ifndef WEFT_HAS_UCX
  GTEST_SKIP() << "built without UCX";
#else
  Node b(TransportKind::kUcx, 1, 3), healthy(TransportKind::kUcx, 2, 3);
  RawPeer peer = RawPeer::ConnectTo(b.address());
  ASSERT_TRUE(
      peer.ShakeHands(b, 0, 3, LinkParameters{1, 0, 1}.Encode(), HandshakePurpose::kUcxLink));
  ASSERT_TRUE(DriveUntil({&b}, [&] { return b.accepted(0) != nullptr; }));
  FrameHeader header;
  header.type = FrameType::kAddress;
  header.receive = 1;
  ASSERT_TRUE(peer.Say(header));
  ASSERT_TRUE(DriveUntil({&b}, [&] { return !b.broken.empty(); }));
  const absl::Status& why = b.broken[0].second;
  EXPECT_EQ(why.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(std::string(why.message()), HasSubstr("rank 0"));
  EXPECT_THAT(std::string(why.message()), HasSubstr("address frame for ucx has 0 bytes"));

  SendLink* to_b = healthy.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&b, &healthy}, [&] { return b.accepted(2) != nullptr; }));
  ExpectMessagePasses(healthy, to_b, b, b.accepted(2));
#endif
}

}  // namespace
}  // namespace weft::net
