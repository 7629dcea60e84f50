// One of two ranks that test programs of the Soft-RoCE machine run as processes of their own.
#ifndef WEFT_TESTS_ROCE_RANK_H_
#define WEFT_TESTS_ROCE_RANK_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/net/harness.h"

namespace weft::net {

class TestRank {
 public:
  // Over verbs, or with transport=multipath among the settings over that. Addresses go through
  // files FILE.0 and FILE.1. Ends the process when the other does not come.
  TestRank(int rank, const std::string& file, const std::vector<std::string>& settings);

  int rank() const { return rank_; }
  Node& node() { return node_; }
  SendLink* out() { return out_; }  // to the other
  ReceiveLink* in() { return node_.accepted(1 - rank_); }

  // Until it is done, polling for so long before it sleeps as an owner would.
  void Await(Request* request, absl::Duration spin);

 private:
  int rank_;
  Node node_;
  SendLink* out_ = nullptr;
};

// RANK FILE [STEP]... [SETTING=VALUE]...
struct TestRankArguments {
  int rank = -1;
  std::string file;
  std::vector<std::string> steps, settings;
};
TestRankArguments ParseTestRank(int argc, char** argv);  // ends the process when they are wrong

}  // namespace weft::net

#endif  // WEFT_TESTS_ROCE_RANK_H_
