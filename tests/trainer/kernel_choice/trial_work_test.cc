// The products and the attention that a trial takes from a step.
#include "trainer/kernel_choice/trial_work.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/trainer/kernel_choice/small_config.h"

namespace weft::train {
namespace {

class TrialWorkTest : public ::testing::Test {
 protected:
  StepPlan Plan() const {
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(
        config_, {.tensor = config_.tensor_parallel, .context = config_.context_parallel});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }

  TrainConfig config_ = SmallConfig();
};

// A model of GPT-2's form has five weights: queries, keys and values; attention's output; the inner
// layer; the way back from it; and the output projection, which is the embedding's table.
TEST_F(TrialWorkTest, EachProductOfAStepHasARateAtItsOwnShape) {
  config_.model.layers = 3;
  std::vector<std::string> names;
  for (const TrialProduct& product : ProductsOf(config_, Plan())) {
    names.push_back(ToString(product.shape));
    EXPECT_EQ(product.rows, 48) << names.back();
  }
  std::vector<std::string> wanted;
  for (const char* layer : {"32x100", "32x96", "32x32", "32x48", "48x32"}) {
    for (const char* pass : {"forward.", "input.", "weight."}) {
      wanted.push_back(std::string(pass) + layer);
    }
  }
  EXPECT_EQ(names, wanted);
  // The output projection is there once, a layer's matrices in each layer.
  EXPECT_EQ(ProductsOf(config_, Plan())[0].flops, 2.0 * 48 * 32 * 100);
  EXPECT_EQ(ProductsOf(config_, Plan())[3].flops, 2.0 * 48 * 32 * 96 * 3);
  config_.tensor_parallel = 2;
  EXPECT_EQ(ToString(ProductsOf(config_, Plan())[3].shape), "forward.32x48");
  config_.tensor_parallel = 1;
  config_.micro_batch = 1;
  config_.loss_rows = 12;
  config_.pack_weights = true;
  const std::vector<TrialProduct> products = ProductsOf(config_, Plan());
  EXPECT_EQ(products[0].rows, 12);  // of a chunk of the loss
  EXPECT_EQ(products[0].uses, 4);   // two micro-batches of two chunks
  EXPECT_EQ(products[3].rows, 24);
  EXPECT_EQ(products[3].uses, 2);
  EXPECT_FALSE(products[3].adds);
  EXPECT_TRUE(products[5].adds);
  EXPECT_TRUE(products[5].into_fp32);
  EXPECT_EQ(products[5].uses, 1);
}

TEST_F(TrialWorkTest, EachWindowIsThereOnce) {
  EXPECT_EQ(WindowsOf(config_.model), std::vector<int64_t>{0});
  config_.model.window = 8;
  EXPECT_EQ(WindowsOf(config_.model), std::vector<int64_t>{8});
  config_.model.window_layers = {true, false};
  EXPECT_EQ(WindowsOf(config_.model), (std::vector<int64_t>{0, 8}));
}

TEST_F(TrialWorkTest, ARankAttendsWithItsHeadsOverWholeSamples) {
  const AttentionWork whole = AttentionOf(config_, Plan(), /*window=*/0);
  EXPECT_EQ(whole.heads, 4);
  EXPECT_EQ(whole.width, 8);
  EXPECT_EQ(whole.length, 24);
  EXPECT_EQ(whole.flops(), 7.0 * 2 * 4 * 8 * 24 * 24);
  EXPECT_EQ(AttentionOf(config_, Plan(), /*window=*/6).flops(), whole.flops() / 4);
  config_.tensor_parallel = 2;
  EXPECT_EQ(AttentionOf(config_, Plan(), 0).flops(), whole.flops() / 2);
  // Heads are exchanged for tokens: half of the heads again.
  config_.context_parallel = 2;
  config_.context_method = ContextMethod::kUlysses;
  EXPECT_EQ(AttentionOf(config_, Plan(), 0).flops(), whole.flops() / 4);
}

}  // namespace
}  // namespace weft::train
