// Job descriptions from TOML and from the command line.
#include "topology/cost/job_file.h"

#include <gmock/gmock.h>

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFile = R"(name = "demo"
[layout]
tensor = 8
data = 4
pipeline = 2
nesting = ["tensor", "pipeline", "data"]
[node]
gpus = 8
nvlink = "450GB/s"
[[traffic]]
name = "gradients"
axes = ["data"]
collective = "reduce_scatter"
bytes = "5.5GB"
exposed = 0.25
[[traffic]]
axes = ["pipeline"]
collective = "send_recv"
bytes = 6291456
both_ways = true
)";

TEST(JobFile, ReadsAllSections) {
  absl::StatusOr<Job> job = ParseJob(kFile, "demo.toml", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name, "demo");
  EXPECT_EQ(job->mesh.Describe(), "tensor 8 x pipeline 2 x data 4");
  EXPECT_DOUBLE_EQ(job->node.nvlink.bytes_per_second(), 450e9);
  ASSERT_EQ(job->traffic.size(), 2U);
  EXPECT_EQ(job->traffic[0].bytes, Bytes(5'500'000'000));
  EXPECT_EQ(job->traffic[0].collective, CollectiveKind::kReduceScatter);
  EXPECT_EQ(job->traffic[0].exposed, 0.25);
  EXPECT_EQ(job->traffic[1].name, "pipeline send_recv");
  EXPECT_TRUE(job->traffic[1].both_ways);
}

TEST(JobFile, TheCommandLineGoesBeforeTheFile) {
  JobWords words;
  words.layout = "data=16,nesting=tp-dp-pp";
  words.traffic = {"name=gradients,axes=dp,collective=all_reduce,bytes=1GB"};
  absl::StatusOr<Job> job = ParseJob(kFile, "demo.toml", words);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->mesh.Describe(), "tensor 8 x data 16 x pipeline 2");
  ASSERT_EQ(job->traffic.size(), 2U);
  EXPECT_EQ(job->traffic[0].bytes, Bytes(1'000'000'000));
}

TEST(JobFile, TheCommandLineSufficesWithAPreset) {
  JobWords words;
  words.layout = "tp=8,pp=8,dp=192";
  words.model = "gpt-175b,zero=0";
  absl::StatusOr<Job> job = LoadJob("", words);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->traffic.back().collective, CollectiveKind::kAllReduce);
}

TEST(JobFile, ErrorsNameLineKeyAndWhatWouldBeRight) {
  struct Case {
    std::string from, to, message;
  };
  for (const Case& one : std::vector<Case>{
           {"data = 4", "data = \"x\"", "demo.toml:4: layout.data = x: must be a whole number"},
           {"data = 4", "data = 0", "demo.toml:4: layout.data = 0: must be a whole number from 1"},
           {"data = 4", "datta = 4", "demo.toml:4: [layout] has no key 'datta'; nearest: data"},
           {"\"pipeline\", \"data\"", "\"data\"", "nesting = tensor-data leaves out pipeline"},
           {"\"pipeline\", \"data\"", "\"data\", \"data\"", "data is named twice"},
           {"450GB/s", "fast", "demo.toml:9: node.nvlink = fast"},
           {"nvlink = \"450GB/s\"", "nvlink_latency = \"inf\"",
            "demo.toml:9: node.nvlink_latency = inf: must be a time"},
           {"reduce_scatter", "reduce", "demo.toml:13: traffic.collective = reduce"},
           {"collective = \"send_recv\"", "", "demo.toml:16: [[traffic]] needs collective"},
           {"exposed = 0.25", "exposed = 2.0", "demo.toml:15: traffic.exposed"},
           {"[node]", "[nodes]", "there is no section 'nodes'"},
           {"bytes = 6291456", "bytes = [1]", "traffic.bytes must be a list of texts"},
           {"[node]", "[node", "not valid TOML"},
       }) {
    std::string text = kFile;
    text.replace(text.find(one.from), one.from.size(), one.to);
    absl::StatusOr<Job> job = ParseJob(text, "demo.toml", {});
    ASSERT_FALSE(job.ok()) << one.to;
    EXPECT_THAT(std::string(job.status().message()), HasSubstr(one.message));
  }
  JobWords words;
  words.layout = "tp=8,xy=3";
  EXPECT_THAT(ParseJob(kFile, "demo.toml", words).status().ToString(),
              HasSubstr("--layout: [layout] has no key 'xy'"));
  EXPECT_THAT(LoadJob("/nonexistent/job.toml", {}).status().ToString(),
              HasSubstr("open /nonexistent/job.toml"));
}

}  // namespace
}  // namespace weft::topology
