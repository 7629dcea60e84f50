// The suite that every transport passes; see transport.h for what it holds them to. A new transport
// is done when it is listed here and the suite passes.
#ifndef WEFT_TESTS_NET_CONFORMANCE_H_
#define WEFT_TESTS_NET_CONFORMANCE_H_

#include <string>

#include "tests/net/harness.h"

namespace weft::net {

class Conformance : public testing::TestWithParam<TransportKind> {};
inline std::string KindName(const testing::TestParamInfo<TransportKind>& info) {
  return ToString(info.param);
}
inline const auto kAllTransports =
    testing::Values(TransportKind::kShm, TransportKind::kTcp, TransportKind::kMultipath
#ifdef WEFT_HAS_UCX
                    ,
                    TransportKind::kUcx
#endif
    );

// A status that a person can act upon: the right code, and the peer's rank in words.
inline void ExpectNames(const absl::Status& status, absl::StatusCode code, int rank) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find("rank " + std::to_string(rank)), std::string::npos)
      << status;
}

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_CONFORMANCE_H_
