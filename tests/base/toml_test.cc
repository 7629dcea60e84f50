#include "base/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  absl::StatusOr<toml::value> root = ParseToml(text, "fabric.toml");
  return std::string(root.status().message());
}

std::string Repeated(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(Toml, ValuesAreReadWithTheirLines) {
  absl::StatusOr<toml::value> root = ParseToml("# first\n[a.b]\nc = [1, 2.5, \"x\"]\n", "f");
  ASSERT_TRUE(root.ok()) << root.status();
  const toml::value& c = toml::find(*root, "a", "b", "c");
  EXPECT_EQ(c.location().line(), 3u);
  EXPECT_EQ(c.as_array().size(), 3u);
  EXPECT_TRUE(ParseToml("", "f")->as_table().empty());
}

TEST(Toml, SyntaxErrorNamesFileAndLine) {
  EXPECT_THAT(ErrorOf("a = 1\nb =\n"), HasSubstr("fabric.toml:2: not valid TOML"));
  EXPECT_THAT(ErrorOf("a = 1\na = 2\n"), HasSubstr("fabric.toml:2: not valid TOML"));
  EXPECT_THAT(ErrorOf("[node\n"), HasSubstr("not valid TOML"));
}

TEST(Toml, WellFormedUtf8IsTaken) {
  for (const char* text : {"plain", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(ErrorOf(absl::StrCat("a = '", text, "'\n")), "");
  }
}

TEST(Toml, WhatIsNoUtf8IsNamedWithItsLine) {
  const std::string bad[] = {"\x80",
                             "\xc3",
                             "\xc0\x80",
                             "\xc3(",
                             "\xe2\x82",
                             "\xe0\x80\x80",
                             "\xed\xa0\x80",
                             "\xf0\x80\x80\x80",
                             "\xf5\x80\x80\x80",
                             "\xff",
                             "\xf4\x90\x80\x80"};
  for (const std::string& text : bad) {
    EXPECT_THAT(ErrorOf("a = 1\nb = '" + text + "'"),
                HasSubstr("fabric.toml:2: not valid TOML: byte 0x"));
  }
}

// Each of these overflows the parser's stack where it gets through.
TEST(Toml, DeepNestingIsRefusedBeforeItIsParsed) {
  EXPECT_THAT(ErrorOf("a = 1\nb = " + Repeated(100'000, "[")),
              HasSubstr("fabric.toml:2: nested too deeply"));
  EXPECT_THAT(ErrorOf("b = " + Repeated(100'000, "{a=")), HasSubstr("nested too deeply"));
  EXPECT_THAT(ErrorOf("a" + Repeated(100'000, ".a") + " = 1"), HasSubstr("nested too deeply"));
}

TEST(Toml, BracketsAndDotsThatDoNotNestAreNotCounted) {
  EXPECT_EQ(ErrorOf("a = \"" + Repeated(100, "[.") + "\" # " + Repeated(100, "[.") + "\n"), "");
  EXPECT_EQ(ErrorOf("a = '''\n" + Repeated(100, "[.\n") + "'''\n"), "");
  EXPECT_EQ(ErrorOf("a = [" + Repeated(1000, "1.5, ") + "2.5]\n"), "");
  EXPECT_EQ(ErrorOf("a = [" + Repeated(100, "[1], ") + "[2]]\n"), "");
}

TEST(Toml, NestingUpToTheLimitIsParsed) {
  const int most = kTomlBracketsMax;
  EXPECT_EQ(ErrorOf("a = " + Repeated(most, "[") + Repeated(most, "]")), "");
  EXPECT_EQ(ErrorOf("a" + Repeated(kTomlDotsMax, ".a") + " = 1"), "");
}

TEST(Toml, HugeTextIsRefused) {
  absl::Status status = ParseToml(std::string(kTomlSizeMax + 1, '\n'), "fabric.toml").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace weft
