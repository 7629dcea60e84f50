#include "trainer/data/gcide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::train {
namespace {

using ::testing::ElementsAre;

TEST(CleanGcide, MakesAnEntryReadAsEnglish) {
  EXPECT_EQ(CleanGcideEntry(R"(Coagulate \Co*ag"u*late\, v. t. [imp. & p. p. {Coagulated}; p.
   pr. & vb. n. {Coagulating}.]
   To cause (a liquid) to change into a curdlike or semisolid
   state; as, rennet coagulates milk.
   [1913 Webster]

   Syn: To thicken; concrete.
        [1913 Webster]
)"),
            "Coagulate, v. t. [imp. & p. p. Coagulated; p. pr. & vb. n. Coagulating.] To cause (a "
            "liquid) to change into a curdlike or semisolid state; as, rennet coagulates milk.\n"
            "Syn: To thicken; concrete.");
}

TEST(CleanGcide, DropsPronunciationAndEtymology) {
  EXPECT_EQ(CleanGcideEntry(R"(Coal \Coal\ (k[=o]l), n. [AS. col; akin to D. kool. Cf. {Kiln}.]
   1. A black solid. [Obs.] --Shak.
      [1913 Webster]

   2. (Min.) Charcoal.
      [1913 Webster])"),
            "Coal, n.\n1. A black solid. [Obs.] --Shak.\n2. (Min.) Charcoal.");
}

TEST(CleanGcide, WritesCodesAsLettersAndKeepsLabels) {
  EXPECT_EQ(CleanGcideEntry("X \\X\\, n. A protovertebr[ae], a caf['e], a jab[i^]ru. [R.] [PJC]"),
            "X, n. A protovertebræ, a café, a jabiru. [R.]");
}

TEST(CleanGcide, SeparatesTwoHeadWords) {
  EXPECT_EQ(CleanGcideEntry("Frigorific \\Frig\"o*rif\"ic\\, Frigorifical \\Frig`al\\a.\n   Cold."),
            "Frigorific, Frigorifical, a. Cold.");
}

TEST(CleanGcide, DropsTheEchoOfTheNextHeadWord) {
  EXPECT_EQ(CleanGcideEntry("Y \\Y\\, n.\n   The quality of being.\n   [1913 Webster] Decigram"),
            "Y, n. The quality of being.");
}

TEST(CleanGcide, TakesEntriesAndLeavesNotices) {
  EXPECT_THAT(
      CleanGcide("00-database-info\n   A notice of some length.\n\n"
                 "A \\A\\, n. The first letter, of all.\n   More of it.\n\n   2. Second.\n\n"
                 "Unfit\n\n"
                 "B \\B\\, n. The second of the letters.\n"),
      ElementsAre("A, n. The first letter, of all. More of it.\n2. Second.",
                  "B, n. The second of the letters."));
}

TEST(CleanGcide, BearsUnbalancedMarks) {
  for (const char* entry : {"\\", "[", "A \\b", "A [b [c]", "]", "{", "A \\b\\ (", "[]", "\\\\"}) {
    CleanGcideEntry(entry);
  }
}

}  // namespace
}  // namespace weft::train
