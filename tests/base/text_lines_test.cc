#include "base/text_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;

TEST(TextLines, AreNumberedWithoutCommentsAndBlanks) {
  TextLines lines(" a b # c\r\n\n#d\ne", "file");
  absl::string_view line;
  ASSERT_TRUE(lines.Next(line));
  EXPECT_EQ(line, "a b");
  ASSERT_TRUE(lines.Next(line));
  EXPECT_EQ(line, "");
  ASSERT_TRUE(lines.Next(line, /*comments=*/false));
  EXPECT_EQ(line, "#d");
  EXPECT_FALSE(lines.is_done());
  ASSERT_TRUE(lines.Next(line));
  EXPECT_EQ(line, "e");
  EXPECT_TRUE(lines.is_done());
  EXPECT_EQ(lines.Error("\"", line, "\" is wrong").message(), "file:4: \"e\" is wrong");
  EXPECT_FALSE(lines.Next(line));
  EXPECT_EQ(lines.number(), 4);
}

TEST(TextLines, WordsAreThoseOfTheNextLineThatHasSome) {
  TextLines lines("# only this\n\n\ta  b\r\n \n", "file");
  std::vector<absl::string_view> words;
  ASSERT_TRUE(lines.NextWords(words));
  EXPECT_THAT(words, ElementsAre("a", "b"));
  EXPECT_EQ(lines.Where(), "file:3");
  EXPECT_FALSE(lines.NextWords(words));
}

TEST(Excerpt, HasNothingThatATerminalActsOn) {
  EXPECT_EQ(Excerpt("a\x1b[31m\tb\xe9"), "a?[31m?b?");
  EXPECT_EQ(Excerpt(std::string(100, 'x')).size(), 64);
}

}  // namespace
}  // namespace weft
