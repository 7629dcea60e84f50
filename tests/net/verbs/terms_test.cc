// What an unauthenticated peer says that its side is set to.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "base/random.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

bool ComesIn(Node& node, TransportKind kind, const std::string& terms) {
  const HandshakePurpose purpose = kind == TransportKind::kVerbs ? HandshakePurpose::kVerbsLink
                                                                 : HandshakePurpose::kMultipathLink;
  const LinkParameters parameters = {.link_id = 7, .index = 0, .count = 1};
  return RawPeer::ConnectTo(node.address())
      .ShakeHands(node, 0, 3, parameters.Encode() + terms, purpose);
}

TEST(Terms, ThatMakeNoSenseAreTurnedAway) {
  for (TransportKind kind : {TransportKind::kVerbs, TransportKind::kMultipath}) {
    Node b(kind, 1, 3), healthy(kind, 2, 3);
    for (const char* terms : {"", "u", "uc", "rc", "uc ", "rc ", "uc x", "  ", "udp"}) {
      EXPECT_FALSE(ComesIn(b, kind, terms)) << terms;
    }
    Random random(1, 1);
    for (int i = 0; i < 200; ++i) {
      std::string terms = i % 2 == 0 ? "" : "uc ";
      for (uint64_t more = random.Below(90); more > 0; --more) {
        terms += static_cast<char>(random.Below(256));
      }
      EXPECT_FALSE(ComesIn(b, kind, terms)) << absl::CHexEscape(terms);
    }
    EXPECT_EQ(b.accepted_count, 0);
    healthy.Connect(b.address(), 1);
    EXPECT_TRUE(DriveUntil({&b, &healthy}, [&] { return b.accepted_count == 1; }));
  }
}

}  // namespace
}  // namespace weft::net
