// Descriptions of datasets that one run trains on.
#include "trainer/data/dataset_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/scratch_folder.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReadDatasetInfosTest : public ::testing::Test {
 protected:
  // A dataset's prefix. `tokenizer`: the bytes of its own tokenizer.
  std::string Write(const std::string& name, int32_t vocabulary, int32_t eod,
                    const std::string& tokenizer) {
    const std::string prefix = folder_ / name;
    DatasetInfo info;
    info.vocab_size = vocabulary;
    info.eod_id = eod;
    info.tokenizer = prefix + ".model";
    EXPECT_TRUE(WriteFileAtomically(info.tokenizer, tokenizer).ok());
    EXPECT_TRUE(WriteDatasetInfo(prefix, info).ok());
    return prefix;
  }
  static std::string ErrorOf(const std::vector<std::string>& prefixes) {
    return std::string(ReadDatasetInfos(prefixes).status().message());
  }

  ScratchFolder folder_;
  const std::string first_ = Write("first", 320, 2, "pieces");
};

TEST_F(ReadDatasetInfosTest, ReadsDatasetsOfOneTokenizerWhereverItLies) {
  const auto infos = ReadDatasetInfos({first_, Write("copy", 320, 2, "pieces")});
  ASSERT_TRUE(infos.ok()) << infos.status();
  ASSERT_EQ(infos->size(), 2U);
  EXPECT_EQ((*infos)[0].tokenizer, folder_ / "first.model");
  EXPECT_EQ((*infos)[1].tokenizer, folder_ / "copy.model");
}

TEST_F(ReadDatasetInfosTest, NamesBothDatasetsAndWhatDiffers) {
  const std::string same = Write("same", 320, 2, "pieces");
  const std::string larger = Write("larger", 384, 2, "pieces");
  const std::string ended = Write("ended", 320, 3, "pieces");
  const std::string other = Write("other", 320, 2, "others");
  EXPECT_THAT(ErrorOf({first_, same, larger}),
              AllOf(HasSubstr("datasets " + first_ + " and " + larger + " differ"),
                    HasSubstr("('vocab_size'): 320 and 384")));
  EXPECT_THAT(ErrorOf({first_, ended}), AllOf(HasSubstr(first_ + " and " + ended + " differ"),
                                              HasSubstr("('eod_id'): 2 and 3")));
  EXPECT_THAT(ErrorOf({first_, other}),
              AllOf(HasSubstr(first_ + " and " + other + " differ in their tokenizer's bytes"),
                    HasSubstr(other + ".model")));
}

TEST_F(ReadDatasetInfosTest, NamesADatasetThatIsNotThere) {
  EXPECT_THAT(ErrorOf({first_, folder_ / "none"}), HasSubstr(folder_ / "none.json"));
  EXPECT_TRUE(absl::IsNotFound(ReadDatasetInfos({}).status()));
}

}  // namespace
}  // namespace weft::train
