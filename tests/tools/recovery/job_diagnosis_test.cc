#include "tools/recovery/job_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace weft::recovery {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What the diagnosis says, once it says something; empty: nothing within a minute.
std::vector<std::string> FirstWords(JobDiagnosis& diagnosis) {
  for (const absl::Time end = absl::Now() + absl::Minutes(1); absl::Now() < end;) {
    if (JobDiagnosis::News news = diagnosis.Take(); !news.lines.empty()) return news.lines;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return {};
}

// As TMPDIR of the node that a job was sent from, on another one.
TEST(JobDiagnosisTest, AFolderForTemporaryFilesThatIsNotThereIsSaidOnce) {
  setenv("TMPDIR", "/no/such/folder", 1);
  JobDiagnosis diagnosis("job", absl::Seconds(30));
  diagnosis.SetAgents({{"127.0.0.1:1", "token"}});
  EXPECT_THAT(FirstWords(diagnosis), testing::ElementsAre(HasSubstr("TMPDIR")));
  absl::SleepFor(absl::Milliseconds(2500));  // two looks
  EXPECT_THAT(diagnosis.Take().lines, IsEmpty());
  unsetenv("TMPDIR");
}

TEST(JobDiagnosisTest, AnAgentWhoseAddressIsNoneIsSaidAndHarmsNothing) {
  JobDiagnosis diagnosis("job", absl::Seconds(30));
  diagnosis.SetAgents({{"127.0.0.1:1", "token"}, {"no address", "token"}});
  EXPECT_THAT(FirstWords(diagnosis), testing::ElementsAre(HasSubstr("no address")));
  absl::SleepFor(absl::Milliseconds(2500));
  diagnosis.SetAgents({{"127.0.0.1:1", "token"}});
  EXPECT_THAT(FirstWords(diagnosis), testing::ElementsAre(HasSubstr("agent 127.0.0.1:1: ")));
}

}  // namespace
}  // namespace weft::recovery
