#include "trainer/data/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

#include "tests/scratch_folder.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + 15, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

absl::StatusOr<std::string> ReadBack(const std::string& content, Bytes size_max = GiB(1)) {
  ScratchFolder folder;
  EXPECT_TRUE(WriteFileAtomically(folder / "f", content).ok());
  return ReadTextFile(folder / "f", size_max);
}

std::string Fixed(std::string text) {
  ReplaceInvalidUtf8(text);
  return text;
}

int64_t CountInvalid(std::string text) { return ReplaceInvalidUtf8(text); }

TEST(ReadTextFile, UnpacksGzipWithSeveralMembers) {
  std::string large(5 << 20, 'a');
  EXPECT_EQ(*ReadBack("plain"), "plain");
  EXPECT_EQ(*ReadBack(Gzip("one ") + Gzip("two")), "one two");
  EXPECT_EQ(*ReadBack(Gzip("")), "");
  EXPECT_TRUE(*ReadBack(Gzip(large)) == large);
}

TEST(ReadTextFile, ReportsTruncatedAndDamagedArchives) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += std::to_string(i);
  std::string packed = Gzip(text);
  for (size_t size : {size_t{2}, size_t{15}, packed.size() / 2, packed.size() - 1}) {
    auto truncated = ReadBack(packed.substr(0, size));
    ASSERT_FALSE(truncated.ok()) << size;
    EXPECT_THAT(std::string(truncated.status().message()), HasSubstr("truncated"));
  }
  packed[packed.size() / 2] ^= 0x55;
  EXPECT_EQ(ReadBack(packed).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ReadTextFile, StopsUnpackingAtTheBound) {
  const std::string text(5 << 20, 'a');
  const std::string packed = Gzip(text);
  ASSERT_LT(packed.size(), 10'000U);
  EXPECT_TRUE(ReadBack(packed, MiB(5)).value() == text);
  EXPECT_TRUE(ReadBack(text, MiB(5)).value() == text);
  for (const std::string& content : {packed, text, Gzip(text.substr(1)) + Gzip("two")}) {
    auto read = ReadBack(content, Bytes(MiB(5).count() - 1));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("more than 5.00 MiB"));
  }
}

TEST(ReplaceInvalidUtf8, LeavesValidTextAlone) {
  const std::string valid = "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80\xED\x9F\xBF\xF4\x8F\xBF\xBF";
  EXPECT_EQ(CountInvalid(valid), 0);
  EXPECT_EQ(Fixed(valid), valid);
}

TEST(ReplaceInvalidUtf8, ReplacesEachMaximalIllFormedPartOnce) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(Fixed("a\x92z"), "a" + r + "z");
  EXPECT_EQ(Fixed("\xE4\xBD"), r);              // truncated at the end
  EXPECT_EQ(Fixed("\xE4\xBDz"), r + "z");       // truncated in the middle
  EXPECT_EQ(Fixed("\xC0\xAF"), r + r);          // overlong
  EXPECT_EQ(Fixed("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(Fixed("\xF5z"), r + "z");           // beyond U+10FFFF
  EXPECT_EQ(Fixed(std::string("a\0b", 3)), "a" + r + "b");
  EXPECT_EQ(CountInvalid("\x80\x80 ok \xFF"), 3);
}

TEST(SplitDocuments, CutsAtBlankLinesLinesOrNot) {
  const std::string text = "\n\none\ntwo  \n \t\n\n  three\n\nfour";
  EXPECT_THAT(SplitDocuments(text, DocumentSplit::kBlankLines),
              ElementsAre("one\ntwo", "  three", "four"));
  EXPECT_THAT(SplitDocuments("a\n\nb\n", DocumentSplit::kLines), ElementsAre("a", "b"));
  EXPECT_THAT(SplitDocuments(text, DocumentSplit::kFile), ElementsAre(text.substr(2)));
  EXPECT_TRUE(SplitDocuments(" \n\n", DocumentSplit::kBlankLines).empty());
  EXPECT_TRUE(SplitDocuments("", DocumentSplit::kFile).empty());
}

TEST(ParseDocumentSplit, NamesWhatIsRight) {
  EXPECT_EQ(*ParseDocumentSplit("lines"), DocumentSplit::kLines);
  EXPECT_THAT(std::string(ParseDocumentSplit("words").status().message()),
              HasSubstr("blank-lines, lines, file"));
}

}  // namespace
}  // namespace weft::train
