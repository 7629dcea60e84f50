// config.json of Hugging Face models in the forms that versions of transformers write.
#include "trainer/huggingface/model_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

TrainConfig Llama(const std::vector<std::string>& more) {
  std::vector<std::string> settings = {"model.style=llama"};
  settings.insert(settings.end(), more.begin(), more.end());
  absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
  EXPECT_TRUE(config.ok()) << config.status();
  config->model.vocabulary = 512;
  return *config;
}

// What a config.json says whose `key` is `text`: "" where it is the model of `config`.
std::string ErrorOf(const TrainConfig& config, const std::string& key, const std::string& text) {
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(ModelJson(config.model, DType::kF32, 0));
  json.erase("rope_scaling");
  if (!key.empty()) json[key] = nlohmann::ordered_json::parse(text);
  return std::string(CheckModelJson(json.dump(), "config.json", config.model).message());
}

TEST(ModelJsonTest, RotaryScalingIsTheSameInEveryOrderAndUnderBothNamesOfItsKind) {
  const TrainConfig llama3 = Llama({"model.rotary_scaling=llama3", "model.rotary_factor=8",
                                    "model.rotary_original=8192", "model.rotary_base=500000"});
  // As Llama 3.1's own.
  EXPECT_EQ(ErrorOf(llama3, "rope_scaling",
                    R"({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192, "rope_type": "llama3"})"),
            "");
  EXPECT_EQ(ErrorOf(llama3, "rope_parameters",
                    R"({"rope_theta": 500000, "original_max_position_embeddings": 8192,
                        "rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4,
                        "factor": 8})"),
            "");
  EXPECT_THAT(ErrorOf(llama3, "rope_scaling",
                      R"({"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"})"),
              HasSubstr("rope_scaling is {\"factor\":32.0"));
  EXPECT_THAT(ErrorOf(llama3, "", ""), HasSubstr("rope_scaling is not given"));

  const TrainConfig linear = Llama({"model.rotary_scaling=linear", "model.rotary_factor=2"});
  EXPECT_EQ(ErrorOf(linear, "rope_scaling", R"({"type": "linear", "factor": 2.0})"), "");
  EXPECT_EQ(
      ErrorOf(linear, "rope_scaling", R"({"factor": 2, "type": "linear", "rope_type": "linear"})"),
      "");
  EXPECT_THAT(ErrorOf(linear, "rope_scaling", R"({"type": "dynamic", "factor": 2.0})"),
              HasSubstr("\"rope_type\":\"dynamic\""));
  // One that says two things says neither.
  EXPECT_THAT(ErrorOf(linear, "rope_scaling",
                      R"({"type": "dynamic", "rope_type": "linear", "factor": 2.0})"),
              HasSubstr("rope_scaling is {"));
}

TEST(ModelJsonTest, TheDefaultRotaryScalingIsNone) {
  const TrainConfig config = Llama({});
  EXPECT_EQ(ErrorOf(config, "", ""), "");
  EXPECT_EQ(ErrorOf(config, "rope_scaling", "null"), "");
  EXPECT_EQ(ErrorOf(config, "rope_scaling", R"({"rope_type": "default"})"), "");
  EXPECT_EQ(ErrorOf(config, "rope_scaling", R"({"type": "default"})"), "");
  EXPECT_EQ(ErrorOf(config, "rope_parameters", R"({"rope_theta": 10000})"), "");
  EXPECT_THAT(ErrorOf(config, "rope_scaling", R"({"factor": 2.0})"),
              HasSubstr("rope_scaling is {\"factor\":2.0}"));
}

TEST(ModelJsonTest, KeyValueHeadsThatAreNotGivenAreThoseOfTheirKindOfModel) {
  const auto without = [](const TrainConfig& config, const std::string& type) {
    nlohmann::ordered_json json =
        nlohmann::ordered_json::parse(ModelJson(config.model, DType::kF32, 0));
    json.erase("num_key_value_heads");
    json["model_type"] = type;
    json["sliding_window"] = nullptr;
    return std::string(CheckModelJson(json.dump(), "config.json", config.model).message());
  };
  const TrainConfig all = Llama({"model.heads=16", "model.kv_heads=16", "model.hidden=256"});
  const TrainConfig eight = Llama({"model.heads=16", "model.kv_heads=8", "model.hidden=256"});
  EXPECT_EQ(without(all, "llama"), "");
  EXPECT_THAT(without(eight, "llama"), HasSubstr("num_key_value_heads is 16 (by default)"));
  EXPECT_EQ(without(eight, "mistral"), "");
  EXPECT_THAT(without(all, "mistral"), HasSubstr("num_key_value_heads is 8 (by default)"));
}

}  // namespace
}  // namespace weft::train
