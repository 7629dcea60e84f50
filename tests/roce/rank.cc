#include "tests/roce/rank.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/status.h"

namespace weft::net {
namespace {

TransportKind KindOf(const std::vector<std::string>& settings) {
  for (const std::string& one : settings) {
    if (one == "transport=multipath") return TransportKind::kMultipath;
    WEFT_CHECK(!absl::StartsWith(one, "transport=") || one == "transport=verbs", one);
  }
  return TransportKind::kVerbs;
}

}  // namespace

TestRank::TestRank(int rank, const std::string& file, const std::vector<std::string>& settings)
    : rank_(rank), node_(KindOf(settings), rank, 2, settings) {
  const std::string own = file + "." + std::to_string(rank);
  std::ofstream(own + ".new") << node_.address();
  std::rename((own + ".new").c_str(), own.c_str());
  std::string address;
  const absl::Time end = Now() + kPatience;
  while (address.empty() && Now() < end) {
    std::ifstream(file + "." + std::to_string(1 - rank)) >> address;
    if (address.empty()) usleep(10000);
  }
  out_ = node_.Connect(address, 1 - rank);
  WEFT_CHECK(DriveUntil({&node_}, [&] { return in() != nullptr; }), out_->status());
}

void TestRank::Await(Request* request, absl::Duration spin) {
  const absl::Time spin_until = Now() + spin;
  while (!request->done() && Now() < spin_until) node_.Progress();
  const bool ended = DriveUntil({&node_}, [&] { return request->done(); });
  WEFT_CHECK(ended, "not done within " << absl::FormatDuration(kPatience));
  WEFT_CHECK(request->status().ok(), request->status());
}

TestRankArguments ParseTestRank(int argc, char** argv) {
  TestRankArguments out;
  if (argc < 3 || !absl::SimpleAtoi(argv[1], &out.rank) || (out.rank != 0 && out.rank != 1)) {
    std::fprintf(stderr, "usage: %s 0|1 FILE [STEP]... [SETTING=VALUE]...\n", argv[0]);
    std::exit(2);
  }
  out.file = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    (word.find('=') != std::string::npos ? out.settings : out.steps).push_back(word);
  }
  return out;
}

}  // namespace weft::net
