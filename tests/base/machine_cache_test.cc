// The name under which a machine's measurements are kept.
#include "base/machine_cache.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace weft {
namespace {

std::string NameOf(const std::string& cpuinfo) {
  std::istringstream stream(cpuinfo);
  return ProcessorsName(stream, 2);
}

std::string Epyc(const std::string& family, const std::string& model, const std::string& stepping) {
  return "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: " + family +
         "\nmodel\t\t: " + model + "\nmodel name\t: AMD EPYC\nstepping\t: " + stepping +
         "\nmicrocode\t: 0x1000065\n\nprocessor\t: 1\ncpu family\t: 99\n";
}

TEST(MachineCacheTest, GenerationsOfOneNameHaveFilesOfTheirOwn) {
  EXPECT_EQ(NameOf(Epyc("25", "17", "1")), "AuthenticAMD-25-17-1-AMD-EPYC-x2");
  EXPECT_EQ(NameOf(Epyc("26", "2", "1")), "AuthenticAMD-26-2-1-AMD-EPYC-x2");
  EXPECT_NE(NameOf(Epyc("25", "17", "1")), NameOf(Epyc("25", "17", "2")));
}

TEST(MachineCacheTest, WhatCpuinfoLacksIsLeftOut) {
  EXPECT_EQ(NameOf("processor: 0\nCPU implementer : 0x41\nCPU part\t: 0xd40\nCPU revision: 1\n"),
            "0x41-0xd40-1-x2");
  EXPECT_EQ(NameOf("model name : Some / CPU @ 2.0 GHz\n"), "Some-CPU-2-0-GHz-x2");
  EXPECT_EQ(NameOf(""), "unknown-x2");
}

TEST(MachineCacheTest, TheFileIsInTheCacheOfItsKind) {
  const std::string costs = MachineCacheFile("costs");
  if (costs.empty()) GTEST_SKIP() << "no home";
  EXPECT_NE(costs.find("/weft/costs/"), std::string::npos);
  EXPECT_NE(costs, MachineCacheFile("gemm"));
}

}  // namespace
}  // namespace weft
