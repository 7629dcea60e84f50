#include "topology/fabric/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "topology/fabric/faults.h"
#include "topology/fabric/generator.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++count;
  return count;
}

// Every element is closed, in order. Enough to see a picture that no viewer would show.
bool IsBalanced(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = 0; (at = svg.find('<', at)) != std::string::npos; ++at) {
    size_t end = svg.find('>', at);
    if (end == std::string::npos) return false;
    std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

TEST(DrawSvg, ShowsEveryNodeAndCableOfASmallFabric) {
  Fabric fabric = *GenerateFabric("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2");
  std::string svg = DrawSvg(fabric);
  EXPECT_TRUE(IsBalanced(svg));
  EXPECT_EQ(Count(svg, "<line "), 6 + 6);
  EXPECT_EQ(Count(svg, "rx=\"4\""), 11);
  EXPECT_THAT(svg, HasSubstr(">spine1</text>"));
  EXPECT_THAT(svg, HasSubstr("6 hosts, 5 switches, 12 cables"));
}

TEST(DrawSvg, StaysSmallForTwelveThousandGpus) {
  for (const char* name : {"megascale",
                           "three-tier:pods=12,leaves_per_pod=32,hosts_per_leaf=32,"
                           "spines_per_pod=32,cores=192",
                           "leaf-spine:leaves=384,hosts_per_leaf=32,spines=64"}) {
    std::string svg = DrawSvg(*GenerateFabric(name));
    EXPECT_TRUE(IsBalanced(svg)) << name;
    EXPECT_LT(svg.size(), 300'000u) << name;
    EXPECT_GT(Count(svg, "<line "), 20) << name;
  }
}

TEST(DrawSvg, MarksWhatIsDownOrDegraded) {
  Fabric fabric = *GenerateFabric("leaf-spine:leaves=2,hosts_per_leaf=1,spines=1");
  EXPECT_THAT(DrawSvg(fabric), Not(HasSubstr("stroke-dasharray")));
  fabric.SetUp(CablesNamed("leaf0>spine0", fabric)->at(0), false);
  fabric.SetBandwidth(CablesNamed("leaf1>spine0", fabric)->at(0), Bandwidth::GigabitsPerSecond(1));
  std::string svg = DrawSvg(fabric);
  EXPECT_EQ(Count(svg, "stroke-dasharray"), 1);
  EXPECT_THAT(svg, HasSubstr("1 down"));
  EXPECT_THAT(svg, HasSubstr("1 degraded"));
}

TEST(DrawSvg, ColoursEachDirectionByItsHottestLink) {
  Fabric fabric = *GenerateFabric("leaf-spine:leaves=2,hosts_per_leaf=1,spines=1,spine_cables=2");
  std::vector<double> values(static_cast<size_t>(fabric.links()), 0.0);
  LinkId second(CablesNamed("leaf0>spine0#1", fabric)->at(0));
  values[second.index()] = 0.75;
  values[0] = std::numeric_limits<double>::quiet_NaN();
  values[2] = 1.5;
  DrawOptions options;
  options.values = values;
  options.value_name = "<load>";
  std::string svg = DrawSvg(fabric, options);
  EXPECT_TRUE(IsBalanced(svg));
  EXPECT_EQ(Count(svg, "<line "), 2 * (2 + 2));
  EXPECT_THAT(svg, HasSubstr("0.75 at most (leaf0&gt;spine0#1), 0.375 on average"));
  EXPECT_THAT(svg, HasSubstr("#000000"));
  EXPECT_THAT(svg, HasSubstr("#dddddd"));
  EXPECT_THAT(svg, HasSubstr("&lt;load&gt;"));
}

TEST(ToDot, HasEveryNodeAndCable) {
  Fabric fabric = *GenerateFabric("leaf-spine:leaves=2,hosts_per_leaf=2,spines=1");
  fabric.SetUp(LinkId(0), false);
  std::string dot = ToDot(fabric);
  EXPECT_EQ(Count(dot, " -- "), 6);
  EXPECT_EQ(Count(dot, "style=dashed"), 1);
  EXPECT_THAT(dot, HasSubstr("\"leaf1\" -- \"spine0\""));
}

}  // namespace
}  // namespace weft::topology
