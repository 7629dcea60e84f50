// The suite that every transport passes; see transport.h for what it holds them to. A new transport
// is done when it is listed here and the suite passes.
#ifndef WEFT_TESTS_NET_CONFORMANCE_H_
#define WEFT_TESTS_NET_CONFORMANCE_H_

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/net/harness.h"

namespace weft::net {

class Conformance : public testing::TestWithParam<TransportKind> {};
inline std::string KindName(const testing::TestParamInfo<TransportKind>& info) {
  return ToString(info.param);
}
#ifdef WEFT_CONFORMANCE_OF_VERBS  // the programs of tests/net/verbs
inline const auto kAllTransports = testing::Values(TransportKind::kVerbs);
inline constexpr bool kIsScripted = true;
#elif defined(WEFT_CONFORMANCE_OF_QUEUE_PAIRS)  // likewise; multipath.wire is the program's
inline const auto kAllTransports = testing::Values(TransportKind::kMultipath);
inline constexpr bool kIsScripted = true;
#else
inline constexpr bool kIsScripted = false;
inline const auto kAllTransports =
    testing::Values(TransportKind::kShm, TransportKind::kTcp, TransportKind::kMultipath
#ifdef WEFT_HAS_UCX
                    ,
                    TransportKind::kUcx
#endif
    );
#endif

// For tests whose ranks are processes.
#define WEFT_SKIP_IN_ONE_PROCESS(kind)                         \
  if (kIsScripted && std::getenv("WEFT_TEST_RDMA") == nullptr) \
  GTEST_SKIP() << "the scripted NIC is of one process; WEFT_TEST_RDMA=1 takes this host's devices"

// For who knocks in vain.
inline constexpr absl::Duration kQuickTimeout = absl::Milliseconds(700);
inline const std::vector<std::string> kQuick = {"transport.connect_timeout=" +
                                                absl::FormatDuration(kQuickTimeout)};

// A status that a person can act upon: the right code, and the peer's rank in words.
inline void ExpectNames(const absl::Status& status, absl::StatusCode code, int rank) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find("rank " + std::to_string(rank)), std::string::npos)
      << status;
}

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_CONFORMANCE_H_
