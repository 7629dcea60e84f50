// Whatever bytes they hold, job files, lists of hosts, files of ranks, NCCL's graphs and lists of
// traffic are read or refused with an error, in bounded time and memory; what is accepted can be
// written and read again. A fixed number of seeded mutations; WEFT_FUZZ_SECONDS=600 goes on for so
// long. WEFT_FUZZ_SEED begins elsewhere; a failure names the seed that repeats it.
#include <gmock/gmock.h>

#include <array>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/fuzz_budget.h"
#include "topology/cost/job_file.h"
#include "topology/fabric/generator.h"
#include "topology/job/hostlist.h"
#include "topology/order/nccl_files.h"
#include "topology/order/rank_files.h"
#include "topology/sim/workloads/htsim_traffic.h"
#include "topology/sim/workloads/registry.h"

namespace weft::topology {
namespace {

enum Kind {
  kJob,
  kHostlist,
  kHostFile,
  kRanks,
  kSlurm,
  kOpenMpi,
  kTorchrun,
  kNcclGraph,
  kTraffic,
  kWorkload
};
constexpr int kKinds = 10;

constexpr std::array<absl::string_view, kKinds> kSeeds = {
    "name = \"gpt\"\n[layout]\ntensor = 8\ndata = 4\npipeline = 2\n"
    "nesting = [\"tensor\", \"context\", \"expert\", \"data\", \"pipeline\"]\n"
    "[node]\ngpus = 8\nnvlink = \"300GB/s\"\nnvlink_latency = \"3us\"\nqueue_pairs = 2\n"
    "efficiency = 0.985\n[model]\npreset = \"gpt-175b\"\nzero = 2\ninterleave = 6\n"
    "[[traffic]]\nname = \"g\"\naxes = [\"data\"]\ncollective = \"all_reduce\"\n"
    "algorithm = \"tree\"\nbytes = \"5.5GB\"\ntimes = 2\nexposed = 0.5\nwindow = \"1s\"\n",
    "h[0-3,7],leaf[00-15]x,rack[0-1]n[2-5]",
    "h[0-3]\n# a comment\nh7 slots=8\n\nh[8-9],h11\n",
    "# weft ranks 1\n0 h0 0\n1 h0 1\n2 h1 0\n3 h1 1\n",
    "h0\nh0\nh1\nh1\n",
    "rank 0=h0 slot=0-3\nrank 1=h0 slot=4-7\nrank 2=h1 slot=0-3\nrank 3=h1 slot=4-7\n",
    "#!/bin/sh\ncase $(hostname -s) in\nh0) rank=0 ;;\nh1) rank=1 ;;\nesac\n",
    "<graphs version=\"1\">\n  <graph id=\"0\" pattern=\"4\" nchannels=\"2\" typeintra=\"NVL\">\n"
    "    <channel>\n      <net dev=\"0\"/>\n      <gpu dev=\"0\"/>\n      <gpu dev=\"1\"/>\n"
    "      <net dev=\"0\"/>\n    </channel>\n    <channel>\n      <net dev=\"a\"/>\n"
    "      <gpu dev=\"1\"/>\n      <gpu dev=\"0\"/>\n    </channel>\n  </graph>\n</graphs>\n",
    "Nodes 16\nConnections 3\nTriggers 1\n2->11 id 1 start 0 size 2000000 send_done_trigger 1\n"
    "2->4 id 2 trigger 1 size 2000000\n2->5 id 3 trigger 1 size 2000000 prio 1\n"
    "trigger id 1 oneshot\n",
    "permutation:bytes=2MB+incast:fan_in=3,bytes=1MB+full_mesh:shape=shifted,bytes=1MiB+"
    "step:tp=2,pp=2,dp=4,micro_batches=4,layers=4+background:load=0.1"};

constexpr std::array<absl::string_view, 30> kTokens = {"0",
                                                       "1",
                                                       "-1",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "99999999999999999999",
                                                       "1e400",
                                                       "nan",
                                                       "[",
                                                       "]",
                                                       "[0-99999]",
                                                       "[0-999][0-999]",
                                                       "[1-0]",
                                                       ",",
                                                       ",,",
                                                       "=",
                                                       "\"",
                                                       "\n",
                                                       "\t",
                                                       "#",
                                                       "->",
                                                       "+",
                                                       ":",
                                                       "trigger id 2 barrier count 3\n",
                                                       "h0 ",
                                                       "slot=",
                                                       "rank ",
                                                       "[[traffic]]\n",
                                                       "bytes = \"9EB\"\n",
                                                       "\xff"};

const Fabric& SmallFabric() {
  static const Fabric& fabric =
      *new Fabric(*GenerateFabric("leaf-spine:leaves=4,hosts_per_leaf=4,spines=2"));
  return fabric;
}

std::string Mutate(std::string text, Random& random) {
  auto at = [&] { return static_cast<size_t>(random.Below(text.size() + 1)); };
  for (uint64_t changes = 1 + random.Below(4); changes > 0; --changes) {
    switch (random.Below(6)) {
      case 0:
        if (!text.empty()) {
          text[random.Below(text.size())] ^= static_cast<char>(1 << random.Below(8));
        }
        break;
      case 1:
        text.erase(at(), random.Below(16));
        break;
      case 2:
        text.insert(at(), text.substr(at(), random.Below(80)));
        break;
      case 3: {
        size_t digit = text.find_first_of("0123456789", at());
        if (digit == std::string::npos) break;
        size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(digit, (end == std::string::npos ? text.size() : end) - digit,
                     std::string(kTokens[random.Below(8)]));
        break;
      }
      case 4:
        text.resize(at());
        break;
      default:
        text.insert(at(), std::string(kTokens[random.Below(kTokens.size())]));
    }
  }
  return text;
}

void ExpectTheSameAgain(const absl::StatusOr<RankTable>& table) {
  if (!table.ok()) {
    ASSERT_THAT(std::string(table.status().message()), ::testing::StartsWith("fuzzed"));
    return;
  }
  absl::StatusOr<RankTable> again = ParseRankFile(RankFileText(*table), "again");
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(*again, *table);
}

// Returns the error of what was refused.
absl::Status Read(Kind kind, const std::string& text) {
  switch (kind) {
    case kJob:
      return ParseJob(text, "fuzzed", {}).status();
    case kHostlist: {
      auto names = ExpandHostlist(text);
      if (names.ok()) {
        EXPECT_EQ(ExpandHostlist(CompressHostlist(*names)).value(), *names);
      }
      return names.status();
    }
    case kHostFile:
      return ParseHostFile(text, "fuzzed").status();
    case kRanks:
      ExpectTheSameAgain(ParseRankFile(text, "fuzzed"));
      break;
    case kSlurm:
      ExpectTheSameAgain(ParseSlurmHostfile(text, "fuzzed"));
      break;
    case kOpenMpi:
      ExpectTheSameAgain(ParseOpenMpiRankfile(text, "fuzzed", 4));
      break;
    case kTorchrun:
      ExpectTheSameAgain(ParseTorchrun(text, "fuzzed"));
      break;
    case kNcclGraph: {
      auto channels = ParseNcclGraph(text);
      if (!channels.ok()) {
        EXPECT_THAT(std::string(channels.status().message()), ::testing::HasSubstr("line "));
      }
      return channels.status();
    }
    case kTraffic: {
      auto workload = ParseHtsimTraffic(text, "fuzzed", SmallFabric());
      if (workload.ok()) {
        EXPECT_TRUE(Validate(*workload, SmallFabric()).ok());
      }
      return workload.status();
    }
    case kWorkload: {
      auto workload = MakeWorkload(text, SmallFabric(), 1, {});
      if (workload.ok()) {
        EXPECT_TRUE(Validate(*workload, SmallFabric()).ok());
      }
      return workload.status();
    }
  }
  return absl::OkStatus();
}

TEST(PlanningFuzz, AnyBytesAreReadOrRefused) {
  FuzzBudget budget(4000);
  while (std::optional<uint64_t> seed = budget.Next()) {
    Random random(*seed);
    auto kind = static_cast<Kind>(random.Below(kKinds));
    std::string text = Mutate(std::string(kSeeds[kind]), random);
    absl::Status status = Read(kind, text);
    EXPECT_TRUE(status.ok() || !status.message().empty());
    EXPECT_LT(status.message().size(), 4000u);
    if (HasFailure()) FAIL() << budget.Repeat() << ", kind " << kind << ":\n" << text;
  }
  budget.Report();
  EXPECT_LT(FuzzBudget::MemoryKiB(), 4 << 20) << "KiB";
}

}  // namespace
}  // namespace weft::topology
