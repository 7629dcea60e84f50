#include "topology/sim/workloads/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Fabric LeafSpine() {
  ClosSpec spec;
  spec.groups = 4;
  spec.hosts_per_group = 4;
  spec.nics = 2;
  spec.spines = 2;
  return *BuildClos(spec);
}

std::string Error(absl::string_view text) {
  return std::string(MakeWorkload(text, LeafSpine(), 1, {}).status().message());
}

TEST(Registry, EveryWorkloadBuildsWithItsDefaultsOrSaysWhatTheFabricLacks) {
  for (const char* text :
       {"permutation", "incast:fan_in=5", "full_mesh", "full_mesh:shape=random,window=3",
        "background:duration=100us", "step:tp=2,pp=2,dp=8,layers=8",
        "step:tp=2,pp=2,dp=8,layers=8,schedule=zb-v",
        "step:tp=2,pp=2,dp=8,layers=8,schedule=eager-1f1b", "step:model=llama-160m,tp=2,dp=2",
        "permutation+incast:fan_in=3"}) {
    absl::StatusOr<Workload> workload = MakeWorkload(text, LeafSpine(), 1, {});
    EXPECT_TRUE(workload.ok()) << text << ": " << workload.status();
    if (workload.ok()) {
      EXPECT_GT(workload->transfers(), 0) << text;
      EXPECT_TRUE(Validate(*workload, LeafSpine()).ok()) << text;
    }
  }
}

TEST(Registry, ErrorsNameTheKeyOrValueAndWhatWouldBeRight) {
  EXPECT_THAT(Error("permutaton"),
              AllOf(HasSubstr("no workload \"permutaton\""), HasSubstr("nearest: permutation")));
  EXPECT_THAT(Error(""), HasSubstr("there are: permutation, incast"));
  EXPECT_THAT(Error("incast:fanin=3"),
              AllOf(HasSubstr("workload incast"), HasSubstr("no key \"fanin\""),
                    HasSubstr("nearest: fan_in")));
  EXPECT_THAT(Error("incast:fan_in=0"), HasSubstr("fan_in=0: wanted is a whole number from 1"));
  EXPECT_THAT(Error("incast:fan_in=x"), HasSubstr("fan_in=x"));
  EXPECT_THAT(Error("incast:fan_in=32"), HasSubstr("the fabric has 32 NICs"));
  EXPECT_THAT(Error("incast:bytes=1MB,bytes=2MB"), HasSubstr("bytes is given twice"));
  EXPECT_THAT(Error("incast:bytes"), HasSubstr("bytes=: wanted is a size"));
  EXPECT_THAT(Error("incast:bytes=1EB"), HasSubstr("bytes=1EB"));
  EXPECT_THAT(Error("permutation:start=5"), HasSubstr("wanted is a time like 1.5us"));
  EXPECT_THAT(Error("full_mesh:shape=ring"),
              HasSubstr("wanted is one of parallel, shifted, random"));
  EXPECT_THAT(Error("permutation:ranks=1"), HasSubstr("at least 2"));
  EXPECT_THAT(Error("permutation:ranks=33"), HasSubstr("the fabric has 32 NICs"));
  EXPECT_THAT(Error("background:load=nan"), HasSubstr("load=nan"));
  EXPECT_THAT(Error("background:load=10,bytes=1,duration=1000s"), HasSubstr("transfers; at most"));
  EXPECT_THAT(Error("step:tp=8"), HasSubstr("tp=8: a tensor group stays within one host"));
  EXPECT_THAT(Error("step:tp=2,dp=1000"), HasSubstr("2000 GPUs, and the fabric has 32 NICs"));
  EXPECT_THAT(Error("step:tp=2,dp=2,ep=3"), HasSubstr("dp=2: not a multiple of ep = 3"));
  EXPECT_THAT(Error("step:tp=2,dp=4,ep=2,experts=3"), HasSubstr("experts=3: not a multiple of ep"));
  EXPECT_THAT(Error("step:tp=2,pp=5"), HasSubstr("layers=96: not a multiple of pp x vpp = 5 x 1"));
  EXPECT_THAT(Error("step:tp=2,pp=8,vpp=2,dp=2,micro_batches=9"), HasSubstr("multiple of the 8"));
}

TEST(Registry, HelpNamesEveryWorkloadAndItsKeys) {
  EXPECT_THAT(WorkloadHelp({}), AllOf(HasSubstr("permutation"), HasSubstr("fan_in=32"),
                                      HasSubstr("micro_batches=8"), HasSubstr("0 B to")));
}

TEST(Registry, SameTextAndSeedGiveTheSameWorkload) {
  const Fabric fabric = LeafSpine();
  const char* text = "permutation:order=random,ranks=8+background:sizes=exponential+permutation";
  auto fingerprint = [&](uint64_t seed) {
    const Workload workload = *MakeWorkload(text, fabric, seed, {});
    std::string all;
    for (OperationId i = 0; i < workload.size(); ++i) {
      const Operation& operation = workload.operation(i);
      absl::StrAppend(&all, operation.source.host.value(), ">", operation.target.host.value(), " ",
                      operation.bytes.count(), "@", absl::FormatDuration(operation.start), "\n");
    }
    return all;
  };
  EXPECT_EQ(fingerprint(1), fingerprint(1));
  EXPECT_NE(fingerprint(1), fingerprint(2));
}

// Whatever the text, it is a workload or an error, and takes no more than its bounds.
TEST(Registry, RandomTextsNeverBreakIt) {
  static constexpr absl::string_view kPieces[] = {
      "permutation", "incast", "full_mesh", "schedule", "background",
      "step",        ":",      ",",         "=",        "+",
      "bytes",       "fan_in", "1",         "-1",       "99999999999999999999",
      "64KiB",       "ranks",  "2",         "dp",       "pp",
      "nan",         "1e308",  "order",     "random",   "algorithm",
      "tree",        "chunk",  "0",         "duration", "1us",
      "\xff",        "vpp",    "layers",    "load"};
  const Fabric fabric = LeafSpine();
  Random random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string text(kPieces[random.Below(6)]);
    const uint64_t pieces = random.Below(9);
    for (uint64_t k = 0; k < pieces; ++k) {
      absl::StrAppend(&text, kPieces[random.Below(std::size(kPieces))]);
    }
    absl::StatusOr<Workload> workload = MakeWorkload(text, fabric, 1, {});
    EXPECT_TRUE(workload.ok() || !workload.status().message().empty()) << text;
  }
}

}  // namespace
}  // namespace weft::topology
