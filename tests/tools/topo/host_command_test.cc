#include "tools/topo/host_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/topology/host/machines.h"
#include "topology/host/discover.h"

namespace weft::topo {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HostCommandTest : public ::testing::Test {
 protected:
  HostCommandTest() {
    std::string name = (fs::temp_directory_path() / "weft-topo-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ / "dual.xml") << topology::DualSocket().ToXml();
    std::ofstream(folder_ / "dgx.xml") << topology::DgxLike().ToXml();
  }
  ~HostCommandTest() override { fs::remove_all(folder_); }

  std::string At(const std::string& file) const { return (folder_ / file).string(); }
  std::string Text(const std::string& file) const {
    std::ifstream in(folder_ / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // What `weft-topo host ARGUMENTS` prints; its status is in status_.
  std::string Run(const std::string& arguments) {
    CLI::App app;
    HostCommand host(app);
    app.parse("host " + arguments);
    EXPECT_TRUE(host.chosen());
    ::testing::internal::CaptureStdout();
    status_ = host.Run();
    std::fflush(stdout);
    return ::testing::internal::GetCapturedStdout();
  }

  fs::path folder_;
  absl::StatusOr<int> status_{0};
};

TEST_F(HostCommandTest, ShowsThisMachineWithoutAFile) {
  EXPECT_THAT(Run(""), AllOf(HasSubstr("NUMA node"), HasSubstr("Bindings")));
  ASSERT_TRUE(status_.ok()) << status_.status();
}

TEST_F(HostCommandTest, ShowsTreeMatrixNicsBindingsAndWarningsOfAFile) {
  std::string out = Run("--xml " + At("dual.xml"));
  EXPECT_THAT(out, AllOf(HasSubstr("node7: 2 packages"), HasSubstr("Distances\n"),
                         HasSubstr("NICs of GPUs\n"), HasSubstr("Bindings\n"),
                         HasSubstr("warning: nic1 (mlx5_1)")));
  EXPECT_EQ(*status_, EXIT_SUCCESS);
}

TEST_F(HostCommandTest, StrictFailsOnlyWhenSomethingIsOdd) {
  Run("--strict --xml " + At("dual.xml"));
  EXPECT_EQ(*status_, EXIT_FAILURE);
  Run("--strict --xml " + At("dgx.xml"));
  EXPECT_EQ(*status_, EXIT_SUCCESS);
}

TEST_F(HostCommandTest, JsonAloneIsAllThatIsPrinted) {
  auto json = nlohmann::json::parse(Run("--json - --processes 4 --xml " + At("dgx.xml")));
  EXPECT_EQ(json["bindings"].size(), 4u);
  EXPECT_EQ(json["gpus"].size(), 8u);
}

TEST_F(HostCommandTest, WritesFilesThatItReadsAgain) {
  Run("--xml " + At("dgx.xml") + " --json " + At("a.json") + " --svg " + At("a.svg") +
      " --nccl-out " + At("nccl.xml"));
  ASSERT_TRUE(status_.ok()) << status_.status();
  EXPECT_EQ(nlohmann::json::parse(Text("a.json"))["gpus"].size(), 8u);
  EXPECT_THAT(Text("a.svg"), HasSubstr("</svg>"));
  EXPECT_THAT(Run("--nccl " + At("nccl.xml")), HasSubstr("8 GPUs, 8 NICs"));
}

TEST_F(HostCommandTest, ErrorsNameTheFile) {
  Run("--nccl " + At("dual.xml"));
  EXPECT_THAT(std::string(status_.status().message()),
              AllOf(HasSubstr("dual.xml: line "), HasSubstr("hwloc's format")));
  Run("--xml " + At("dgx.xml") + " --svg " + At("none/a.svg"));
  EXPECT_THAT(std::string(status_.status().message()), HasSubstr("none/a.svg"));
}

TEST_F(HostCommandTest, TwoMachinesAtOnceAreWrongUsage) {
  CLI::App app;
  HostCommand host(app);
  EXPECT_THROW(app.parse("host --xml a --nccl b"), CLI::ParseError);
}

}  // namespace
}  // namespace weft::topo
