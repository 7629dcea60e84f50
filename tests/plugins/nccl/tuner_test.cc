// The tuner in every version of NCCL's table, driven as NCCL does: the same answer from each, what
// is not available stays so, and no call fails.
#include "plugins/nccl/abi/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/plugins/nccl/instance.h"

namespace weft::harness {
namespace {

using nccl::abi::Collective;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr size_t kTree = 0, kRing = 1, kNvls = 4, kPat = 6;
constexpr size_t kLl = 0, kLl128 = 1, kSimple = 2;
using Costs =
    std::array<std::array<float, nccl::abi::kTunerProtocols>, nccl::abi::kTunerAlgorithms>;

// NCCL's logger; the lines since the last look.
std::string& Lines() {
  static std::string lines;
  return lines;
}
// What the logger does once, after a line: as other threads may at that moment.
std::function<void()>& OnceLogged() {
  static std::function<void()> what;
  return what;
}
void Logger(nccl::abi::LogLevel, unsigned long, const char*, int, const char* format, ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  absl::StrAppend(&Lines(), text.data(), "\n");
  if (const auto what = std::exchange(OnceLogged(), nullptr)) what();
}

class Variables {
 public:
  explicit Variables(Environment environment) : environment_(std::move(environment)) {
    for (const auto& [name, value] : environment_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : environment_) unsetenv(name.c_str());
  }

 private:
  Environment environment_;
};

// A communicator's tuner of one version, 3 to 6.
class Communicator {
 public:
  Communicator(Library& library, int version, size_t ranks, size_t nodes) : version_(version) {
    Lines().clear();
    table_ = library.Symbol(absl::StrCat("ncclTunerPlugin_v", version));
    nccl::abi::TunerConstants constants{};
    nccl::abi::NvlDomainInfo domains{};
    const nccl::abi::Result result =
        version < 5 ? Table<nccl::abi::TunerV3>().init(ranks, nodes, &Logger, &context_)
                    : Table<nccl::abi::TunerV5>().init(&context_, 1, ranks, nodes, &Logger,
                                                       &domains, &constants);
    EXPECT_EQ(result, nccl::abi::kSuccess);
    reason_ = Lines();
  }
  ~Communicator() {
    EXPECT_EQ(version_ < 5 ? Table<nccl::abi::TunerV3>().destroy(context_)
                           : Table<nccl::abi::TunerV5>().finalize(context_),
              nccl::abi::kSuccess);
  }
  Costs Ask(Collective collective, size_t bytes, Costs costs) {
    auto* table = reinterpret_cast<float**>(costs.data());
    int channels = 0;
    const nccl::abi::Result result =
        version_ == 3 ? Table<nccl::abi::TunerV3>().get_coll_info(context_, collective, bytes, 1,
                                                                  table, 7, 3, &channels)
                      : Table<nccl::abi::TunerV4>().get_coll_info(context_, collective, bytes, 1,
                                                                  table, 7, 3, 0, &channels);
    if (version_ >= 5) {  // in the same place
      static_assert(offsetof(nccl::abi::TunerV5, get_coll_info) ==
                    offsetof(nccl::abi::TunerV4, get_coll_info));
    }
    EXPECT_EQ(result, nccl::abi::kSuccess);
    EXPECT_EQ(channels, 0);
    return costs;
  }
  const std::string& reason() const { return reason_; }

 private:
  template <typename T>
  const T& Table() const {
    return *static_cast<const T*>(table_);
  }
  int version_;
  const void* table_ = nullptr;
  void* context_ = nullptr;
  std::string reason_;
};

// What NCCL has for an all-reduce without NVLink SHARP, in its own opinion.
Costs NcclCosts() {
  Costs costs;
  for (auto& row : costs) row.fill(-1);
  costs[kTree] = {100, 90, 120};
  costs[kRing] = {200, 180, 110};
  return costs;
}

std::pair<size_t, size_t> Cheapest(const Costs& costs) {
  std::pair<size_t, size_t> best{99, 99};
  for (size_t a = 0; a < costs.size(); ++a) {
    for (size_t p = 0; p < costs[a].size(); ++p) {
      if (costs[a][p] < 0) continue;
      if (best.first == 99 || costs[a][p] < costs[best.first][best.second]) best = {a, p};
    }
  }
  return best;
}

constexpr char kFabric[] = "leaf-spine:leaves=4,spines=4,hosts_per_leaf=4,nics=4,bandwidth=100Gbps";

TEST(NcclTuner, AllVersionsAnswerAlikeAndKeepWhatIsNotAvailable) {
  Instance instance;
  const Variables variables(Environment{{"WEFT_NCCL_FABRIC", kFabric}});
  std::vector<Costs> answers;
  for (int version = 3; version <= 6; ++version) {
    for (int rank = 0; rank < 2; ++rank) {
      Communicator communicator(instance.library(), version, 128, 16);
      EXPECT_THAT(communicator.reason(),
                  HasSubstr(absl::StrCat("TUNER/Weft : 128 ranks on 16 hosts: algorithms by "
                                         "nccl.fabric=",
                                         kFabric, " (4 NICs of 100 Gbps a host")));
      const Costs costs = communicator.Ask(nccl::abi::kAllReduce, 1 << 20, NcclCosts());
      EXPECT_THAT(Lines(), HasSubstr("all_reduce of 1048576 bytes: "));
      for (size_t a = 0; a < costs.size(); ++a) {
        for (size_t p = 0; p < costs[a].size(); ++p) {
          EXPECT_EQ(costs[a][p] < 0, NcclCosts()[a][p] < 0) << a << " " << p;
        }
      }
      answers.push_back(costs);
    }
  }
  for (const Costs& costs : answers) EXPECT_EQ(costs, answers[0]);
  EXPECT_NE(answers[0], NcclCosts());
  // NCCL's own choice, Tree/LL128 by its costs, stands beside ours, with the times of both.
  EXPECT_THAT(Lines(), MatchesRegex(".* us; NCCL alone takes Tree/LL128, [0-9.]+ us\n"));
  // On NCCL's scale: what is cheapest costs what was.
  const auto [algorithm, protocol] = Cheapest(answers[0]);
  EXPECT_FLOAT_EQ(answers[0][algorithm][protocol], 90);
}

TEST(NcclTuner, AnAnswerStandsThoughMoreAreAskedForMeanwhileThanAreKept) {
  Instance instance;
  const Variables variables(Environment{{"WEFT_NCCL_FABRIC", kFabric}});
  constexpr size_t kBytes = size_t{64} << 20, kOthers = 8000;
  Communicator undisturbed(instance.library(), 6, 128, 16);
  const Costs alone = undisturbed.Ask(nccl::abi::kAllReduce, kBytes, NcclCosts());
  Communicator communicator(instance.library(), 6, 128, 16);
  OnceLogged() = [&] {
    for (size_t bytes = 1; bytes <= kOthers; ++bytes) {
      communicator.Ask(nccl::abi::kAllReduce, bytes, NcclCosts());
    }
  };
  EXPECT_EQ(communicator.Ask(nccl::abi::kAllReduce, kBytes, NcclCosts()), alone);
}

TEST(NcclTuner, SmallSizesTakeFlagsAndFewTurnsLargeOnesTheWholeBandwidth) {
  Instance instance;
  const Variables variables(Environment{{"WEFT_NCCL_FABRIC", kFabric}});
  Communicator communicator(instance.library(), 6, 128, 16);
  EXPECT_EQ(Cheapest(communicator.Ask(nccl::abi::kAllReduce, 1024, NcclCosts())),
            std::pair(kTree, kLl));
  EXPECT_EQ(Cheapest(communicator.Ask(nccl::abi::kAllReduce, size_t{1} << 30, NcclCosts())).second,
            kSimple);
  // One rank a host: NCCL has PAT then.
  Communicator flat(instance.library(), 6, 16, 16);
  Costs costs;
  for (auto& row : costs) row.fill(-1);
  costs[kRing] = {-1, -1, 10}, costs[kPat] = {-1, -1, 20};
  EXPECT_EQ(Cheapest(flat.Ask(nccl::abi::kAllGather, 65536, costs)).first, kPat);
  EXPECT_EQ(Cheapest(flat.Ask(nccl::abi::kAllGather, size_t{1} << 30, costs)).second, kSimple);
}

TEST(NcclTuner, AFasterNetworkChangesTheAnswer) {
  Instance instance;
  auto protocol = [&](const char* bandwidth) {
    const Variables variables(
        Environment{{"WEFT_NCCL_FABRIC",
                     absl::StrCat("leaf-spine:leaves=2,hosts_per_leaf=1,bandwidth=", bandwidth)}});
    Communicator communicator(instance.library(), 5, 2, 2);
    Costs costs = NcclCosts();
    costs[kTree].fill(-1);
    costs[kRing][kLl128] = -1;
    return Cheapest(communicator.Ask(nccl::abi::kAllReduce, 65536, costs)).second;
  };
  EXPECT_EQ(protocol("1Gbps"), kSimple);
  EXPECT_EQ(protocol("400Gbps"), kLl);
}

// The cables between leaves are a part of the fabric, as for weft-plan collective; and the hosts
// are as many as the communicator has.
TEST(NcclTuner, SwitchesThatAreOversubscribedChangeTheAnswer) {
  Instance instance;
  auto costs = [&](int oversubscription, size_t nodes) {
    const Variables variables(Environment{
        {"WEFT_NCCL_FABRIC",
         absl::StrCat("leaf-spine:leaves=8,hosts_per_leaf=8,bandwidth=100Gbps,oversubscription=",
                      oversubscription)}});
    Communicator communicator(instance.library(), 6, nodes, nodes);
    if (nodes == 64) {
      EXPECT_THAT(communicator.reason(), HasSubstr(", 8 switches with cables of "));
    } else {
      EXPECT_THAT(communicator.reason(), HasSubstr(absl::StrCat(", its first ", nodes, " hosts")));
    }
    return communicator.Ask(nccl::abi::kAllReduce, 4 << 20, NcclCosts());
  };
  const Costs even = costs(1, 64), narrow = costs(8, 64);
  EXPECT_GT(narrow[kTree][kSimple] / narrow[kRing][kSimple],
            1.2F * even[kTree][kSimple] / even[kRing][kSimple]);
  // Eight hosts are those of one leaf: nothing crosses its cables.
  EXPECT_EQ(costs(1, 8), costs(8, 8));
}

TEST(NcclTuner, VersionTwoNamesAlgorithmAndProtocolUnlessTheUserDoes) {
  Instance instance;
  const Variables variables(Environment{{"WEFT_NCCL_FABRIC", kFabric}});
  const auto& table =
      *static_cast<const nccl::abi::TunerV2*>(instance.library().Symbol("ncclTunerPlugin_v2"));
  void* context = nullptr;
  ASSERT_EQ(table.init(128, 16, &Logger, &context), nccl::abi::kSuccess);
  auto ask = [&](size_t bytes) {
    int algorithm = -1, protocol = -1, channels = 0;
    EXPECT_EQ(table.get_coll_info(context, nccl::abi::kAllReduce, bytes, 0, 0, 1, &algorithm,
                                  &protocol, &channels),
              nccl::abi::kSuccess);
    EXPECT_EQ(channels, 0);
    return std::vector<int>{algorithm, protocol};
  };
  EXPECT_THAT(ask(1024), ElementsAre(kTree, kLl));
  EXPECT_EQ(ask(size_t{1} << 30)[1], static_cast<int>(kSimple));
  {
    const Variables users(Environment{{"NCCL_ALGO", "Ring"}});
    EXPECT_THAT(ask(1024), ElementsAre(-1, -1));
  }
  EXPECT_EQ(table.destroy(context), nccl::abi::kSuccess);
}

TEST(NcclTuner, WhatItDoesNotKnowStaysNcclsChoiceAndItSaysWhy) {
  Instance instance;
  struct Refusal {
    Environment environment;
    size_t ranks, nodes;
    std::string why;
  };
  const std::string broken = absl::StrCat(testing::TempDir(), "/broken-", getpid(), ".toml");
  std::ofstream(broken) << "switches = 3\n";
  const std::vector<Refusal> refusals = {
      {{}, 16, 2, "as nccl.fabric names no fabric"},
      {{{"WEFT_NCCL_TUNER", "off"}, {"WEFT_NCCL_FABRIC", kFabric}}, 16, 2, "as nccl.tuner=off"},
      {{{"WEFT_NCCL_FABRIC", kFabric}}, 8, 1, "no network is between the ranks"},
      {{{"WEFT_NCCL_FABRIC", "/nowhere/fabric.toml"}}, 16, 2, "/nowhere/fabric.toml"},
      {{{"WEFT_NCCL_FABRIC", broken}}, 16, 2, broken},
      {{{"WEFT_NCCL_FABRIC", kFabric}}, 136, 17, "has 16 hosts, and the communicator 17"},
      {{{"WEFT_NCCL_TUNER", "sometimes"}}, 16, 2, "sometimes"}};
  for (const Refusal& refusal : refusals) {
    const Variables variables(refusal.environment);
    for (int version = 3; version <= 6; ++version) {
      Communicator communicator(instance.library(), version, refusal.ranks, refusal.nodes);
      EXPECT_THAT(communicator.reason(), HasSubstr("NCCL's own choice stays, "));
      EXPECT_THAT(communicator.reason(), HasSubstr(refusal.why));
      EXPECT_EQ(communicator.Ask(nccl::abi::kAllReduce, 1 << 20, NcclCosts()), NcclCosts());
    }
  }
  std::remove(broken.c_str());
  // NVLS is not modelled; where NCCL prefers it, that stays.
  const Variables variables(Environment{{"WEFT_NCCL_FABRIC", kFabric}});
  Communicator communicator(instance.library(), 6, 16, 2);
  Costs costs = NcclCosts();
  costs[kNvls][kSimple] = 50;
  EXPECT_EQ(communicator.Ask(nccl::abi::kAllReduce, 1 << 20, costs), costs);
  EXPECT_THAT(Lines(), HasSubstr("bytes: NVLS/Simple stays, NCCL's own choice, of which there is "
                                 "no model; "));
  costs[kNvls][kSimple] = 100;
  const Costs answer = communicator.Ask(nccl::abi::kAllReduce, 1 << 20, costs);
  EXPECT_EQ(answer[kNvls][kSimple], 100);
  EXPECT_NE(Cheapest(answer).first, kNvls);
  // A collective that a later NCCL may have.
  Lines().clear();
  EXPECT_EQ(communicator.Ask(static_cast<Collective>(9), 1 << 20, costs), costs);
  EXPECT_THAT(Lines(), IsEmpty());
}

// A file's checksum, by which hosts that have another one are found; and this host's devices.
TEST(NcclTuner, SaysWhichFileOrDevicesItGoesBy) {
  Instance instance;
  const std::string file = absl::StrCat(testing::TempDir(), "/fabric-", getpid(), ".toml");
  std::ofstream(file) << "generate = { type = \"leaf-spine\", leaves = 2, hosts_per_leaf = 2, "
                         "spines = 2 }\n";
  {
    const Variables variables(Environment{{"WEFT_NCCL_FABRIC", file}});
    Communicator communicator(instance.library(), 6, 4, 2);
    EXPECT_THAT(communicator.reason(), HasSubstr(absl::StrCat("by nccl.fabric=", file)));
    EXPECT_THAT(communicator.reason(), HasSubstr(", checksum "));
  }
  std::remove(file.c_str());
  const Variables variables(Environment{{"WEFT_NCCL_TUNER", "devices"}});
  Communicator communicator(instance.library(), 6, 4, 2);
  EXPECT_THAT(communicator.reason(), HasSubstr("by this host's devices (1 NIC of "));
}

TEST(NcclTuner, AMergedDeviceIsNoNicBesideItsPorts) {
  Instance instance(Environment{{"WEFT_TRANSPORT", "verbs"}}, WEFT_SCRIPTED_PLUGIN,
                    /*neighbours=*/true);
  ASSERT_EQ(instance.init(), nccl::abi::kSuccess) << instance.warning();
  int device = -1;
  // NCCL 2.24 to 2.26 make each that is merged with no other a device of one.
  for (const std::vector<int>& parts : {std::vector<int>{0}, std::vector<int>{0, 1}}) {
    ASSERT_EQ(instance.api().MakeVirtualDevice(&device, parts), nccl::abi::kSuccess);
  }
  const Variables variables(Environment{{"WEFT_NCCL_TUNER", "devices"}});
  Communicator communicator(instance.library(), 6, 4, 2);
  EXPECT_THAT(communicator.reason(), HasSubstr("by this host's devices (2 NICs of "));
}

}  // namespace
}  // namespace weft::harness
