// weft-generate as users run it, on models that weft-train has trained.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <sstream>

#include "tests/trainer/loop/train_run.h"
#include "trainer/generate/trained_model.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class GenerateRunTest : public TrainRunTest {
 protected:
  static Outcome Write(const std::vector<std::string>& words) {
    std::vector<std::string> command = {Environment("WEFT_BIN") + "/weft-generate"};
    command.insert(command.end(), words.begin(), words.end());
    return Process(command, RunDir("generate.out")).Wait();
  }
  // The text in an output that ends with what goes to standard error.
  static std::string TextOf(const std::string& output) {
    return output.substr(0, output.find("\n\nmodel  "));
  }
  static std::vector<json> Objects(const std::string& output) {
    std::vector<json> objects;
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) objects.push_back(json::parse(line));
    return objects;
  }
  // A whole forward pass for every token.
  static std::string GreedyWithoutCache(const std::string& path, const std::string& prompt,
                                        int64_t tokens) {
    auto trained = LoadTrainedModel(path, {});
    EXPECT_TRUE(trained.ok()) << trained.status();
    if (!trained.ok()) return "";
    std::vector<int32_t> ids;
    EXPECT_TRUE(trained->tokenizer->Encode(prompt, ids).ok());
    std::vector<int64_t> all = {trained->tokenizer->eod_id()};
    all.insert(all.end(), ids.begin(), ids.end());
    for (int64_t i = 0; i < tokens; ++i) {
      const at::Tensor input = at::tensor(all, at::kLong).view({1, -1});
      const at::Tensor logits = trained->model->Forward(input, {.last_only = true}).logits;
      const int64_t next =
          logits[0].narrow(0, 0, trained->tokenizer->vocab_size()).argmax().item<int64_t>();
      if (next == trained->tokenizer->eod_id()) break;
      all.push_back(next);
      ids.push_back(static_cast<int32_t>(next));
    }
    return *trained->tokenizer->Decode(ids);
  }
};

TEST_F(GenerateRunTest, WritesWhatTheTrainedModelPredicts) {
  const Outcome trained = Run(1, "one", {"train.steps=40", "sample.prompt=the horse"});
  ASSERT_EQ(trained.status, 0) << trained.output;
  const std::string run = RunDir("one");
  const Outcome greedy =
      Write({run, "--prompt", "the horse", "--tokens", "16", "--temperature", "0"});
  ASSERT_EQ(greedy.status, 0) << greedy.output;
  EXPECT_EQ(TextOf(greedy.output), GreedyWithoutCache(run, "the horse", 16));
  EXPECT_THAT(greedy.output, HasSubstr("prefill"));
  EXPECT_THAT(greedy.output, HasSubstr("GB/s"));

  // What weft-train wrote itself, with the seed and the options of its config.
  const Outcome sampled = Write({run, "--prompt", "the horse", "--tokens", "8", "--temperature",
                                 "0.8", "--top-k", "40", "--seed", "1", "--threads", "1"});
  std::ifstream file(run + "/sample.txt");
  const std::string sample(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(TextOf(sampled.output) + "\n\n", sample);

  // A batch of unequal prompts, as JSON, and each of them alone.
  const std::vector<std::string> prompts = {"the river", "the lamp sees the field of 3", "a"};
  std::ofstream(RunDir("prompts.txt")) << prompts[0] << "\r\n"  // as an editor of Windows ends one
                                       << prompts[1] << "\n"
                                       << prompts[2] << "\n";
  const Outcome batch = Write({run, "--prompts", RunDir("prompts.txt"), "--batch", "3", "--tokens",
                               "12", "--seed", "4", "--json"});
  ASSERT_EQ(batch.status, 0) << batch.output;
  const std::vector<json> objects = Objects(batch.output);
  std::vector<std::string> parts(prompts.size());
  std::vector<std::string> whole;
  for (const json& object : objects) {
    if (object.contains("part")) parts[object["text"]] += object["part"].get<std::string>();
    if (object.contains("whole")) whole.push_back(object["whole"]);
  }
  ASSERT_EQ(whole.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(prompts[i] + parts[i], whole[i]);
    const Outcome alone =
        Write({run, "--prompt", prompts[i], "--tokens", "12", "--seed", std::to_string(4 + i)});
    EXPECT_EQ(TextOf(alone.output), whole[i]);
  }
  EXPECT_EQ(objects.back()["batch"], 3);
  EXPECT_EQ(objects.back()["step"], 40);
  EXPECT_GT(objects.back()["decode_tokens_per_second"], 0);
  EXPECT_GT(objects.back()["measured_read_bytes_per_second"], 0);
}

TEST_F(GenerateRunTest, ReadsACheckpointOfAnyLayout) {
  const Outcome trained =
      Run(4, "mesh",
          {"train.steps=6", "--tp=2", "--pp=2", "checkpoint.every=3", "model.position=rotary"});
  ASSERT_EQ(trained.status, 0) << trained.output;
  for (const std::string& path : {RunDir("mesh"), RunDir("mesh") + "/checkpoints/step-00000003"}) {
    const Outcome greedy = Write({path, "--prompt", "the horse", "--tokens", "9", "--temperature",
                                  "0", "--precision", "fp32"});
    ASSERT_EQ(greedy.status, 0) << greedy.output;
    EXPECT_EQ(TextOf(greedy.output), GreedyWithoutCache(path, "the horse", 9)) << path;
  }
}

TEST_F(GenerateRunTest, SaysWhatIsWrong) {
  const Outcome trained = Run(1, "wrong", {"train.steps=2"});
  ASSERT_EQ(trained.status, 0) << trained.output;
  const std::string run = RunDir("wrong");
  auto expect = [&](const std::vector<std::string>& words, int status, const std::string& what) {
    const Outcome outcome = Write(words);
    EXPECT_EQ(outcome.status, status) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(what));
  };
  expect({run, "--prompt", ""}, 2, "prompt 1 is empty");
  std::ofstream(RunDir("gap.txt")) << "a\n\nb\n";
  expect({run, "--prompts", RunDir("gap.txt")}, 2, "line 2 of");
  std::ofstream(RunDir("none.txt")).close();
  expect({run, "--prompts", RunDir("none.txt")}, 2, "has no prompt");
  expect({run, "--prompts", RunDir("nowhere.txt")}, 1, "nowhere.txt cannot be read");
  expect({run, "--prompt", std::string(100, 'x')}, 2, "the model reads 32 at a time");
  expect({run, "--prompt", "a", "--temperature", "-0.5"}, 2, "temperature = -0.5");
  expect({run, "--prompt", "a", "--tokenizer", RunDir("no.model")}, 1, "no.model");
  expect({RunDir("nothing"), "--prompt", "a"}, 1, "there is no ");
  fs::create_directories(RunDir("empty"));
  expect({RunDir("empty"), "--prompt", "a"}, 1, "is no checkpoint (it has no manifest.json)");

  // One byte of the only checkpoint's shard.
  const std::string shard = run + "/checkpoints/step-00000002/rank-00000-of-00001.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-9, std::ios::end);
  const int before = file.peek();
  file.put(static_cast<char>(before ^ 1));
  file.close();
  expect({run, "--prompt", "a"}, 1, "is damaged");
}

}  // namespace
}  // namespace weft::train
