// Which passes become graphs, and that a step by graphs is the step without them. The device is
// played: what passes give it is work on a list, which a capture keeps and a launch does.
#include "trainer/loop/pass_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using topology::PassKind;
using topology::PipelinePass;
using Passes = std::vector<PipelinePass>;

class PlayedGpu {
 public:
  using Work = std::vector<std::function<void()>>;

  // Now, or when the graph is launched that is being captured.
  void Do(std::function<void()> work) {
    if (capturing_ == nullptr) return work();
    capturing_->push_back(std::move(work));
  }
  std::unique_ptr<GraphDevice> Open() { return std::make_unique<Device>(this); }

  int captures = 0, launches = 0, graphs = 0;  // graphs: that are there
  int capture_fails = -1, launch_fails = -1;   // the call with that number
  std::vector<uint64_t> pools;                 // of the captures

 private:
  struct Graph final : DeviceGraph {
    Graph(PlayedGpu* of, Work the_work) : gpu(*of), work(std::move(the_work)) { ++gpu.graphs; }
    ~Graph() override { --gpu.graphs; }
    absl::Status Launch() override {
      if (gpu.launches++ == gpu.launch_fails) return absl::InternalError("the launch failed");
      for (const auto& one : work) one();
      return absl::OkStatus();
    }
    PlayedGpu& gpu;
    const Work work;
  };
  struct Device final : GraphDevice {
    explicit Device(PlayedGpu* of) : gpu(*of) {}
    absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
        uint64_t pool, const std::function<absl::Status()>& body) override {
      Work work;
      gpu.capturing_ = &work;
      absl::Status status = body();
      gpu.capturing_ = nullptr;
      gpu.pools.push_back(pool);
      if (gpu.captures++ == gpu.capture_fails) status = absl::InternalError("not permitted");
      if (!status.ok()) return status;
      return std::make_unique<Graph>(&gpu, std::move(work));
    }
    PlayedGpu& gpu;
  };

  Work* capturing_ = nullptr;
};

// Two gradients: 0 is used by both passes of a pair, as a tied table is; 1 by the backward pass.
class Sink final : public GradientSink {
 public:
  explicit Sink(int micro_batches) : uses_({2 * micro_batches, micro_batches}) {}
  void BeginStep() { left_ = uses_; }
  GradientTarget Begin(int parameter) override {
    const auto p = static_cast<size_t>(parameter);
    return {gradients[p], left_[p] != uses_[p]};
  }
  void End(int parameter) override { --left_[static_cast<size_t>(parameter)]; }
  bool is_whole() const { return left_ == std::vector<int>{0, 0}; }

  std::vector<at::Tensor> gradients = {at::full({1}, 1e9), at::full({1}, 1e9)};

 private:
  const std::vector<int> uses_;
  std::vector<int> left_;
};

// y = x * x, dx = 2 x dy; gradients of both are sums over x.
PassPair SquareOn(PlayedGpu* gpu) {
  struct Held {
    GradientSink* sink = nullptr;
    at::Tensor x;
  };
  auto give = [gpu](GradientSink* sink, int parameter, std::function<at::Tensor()> value) {
    const GradientTarget target = sink->Begin(parameter);
    gpu->Do([target, value = std::move(value)] {
      target.add ? target.tensor.add_(value()) : target.tensor.copy_(value());
    });
    sink->End(parameter);
  };
  PassPair pair;
  pair.inputs = {at::zeros({2})};
  auto held = std::make_shared<Held>();
  pair.forward = [gpu, give, held, in = pair.inputs[0]](GradientSink* sink) {
    const at::Tensor x = at::empty({2}), y = at::empty({2});
    *held = {sink, x};
    gpu->Do([=] {
      x.copy_(in);  // what the backward pass reads
      y.copy_(in * in);
    });
    give(sink, 0, [=] { return x.sum().view({1}); });
    return y;
  };
  pair.backward = [gpu, give, held](const at::Tensor& dy) {
    const at::Tensor x = held->x, dx = at::empty({2});
    gpu->Do([=] { dx.copy_(2 * x * dy); });
    give(held->sink, 0, [=] { return (x * dy).sum().view({1}); });
    give(held->sink, 1, [=] { return (x + dy).sum().view({1}); });
    return dx;
  };
  return pair;
}

int MicroBatchesOf(const Passes& passes) {
  int count = 0;
  for (const PipelinePass& pass : passes) count = std::max(count, pass.micro_batch + 1);
  return count;
}

class Job {
 public:
  Job(const Passes& passes, bool has_graphs, bool spares_ends = false)
      : passes_(passes), sink_(MicroBatchesOf(passes)) {
    if (!has_graphs) return;
    graphs = std::make_unique<PassGraphs>(
        gpu.Open(), passes_, spares_ends, [this](int /*chunk*/) { return SquareOn(&gpu); }, &sink_);
  }

  // All that a step gives: outputs, gradients of inputs, gradients of parameters.
  std::vector<float> Step(int number, const std::string& fixed = "") {
    sink_.BeginStep();
    const absl::Status captured = graphs ? graphs->BeginStep(fixed) : absl::OkStatus();
    if (!captured.ok()) {
      failure = std::string(captured.message());
      graphs.reset();
    }
    std::vector<at::Tensor> results;
    std::map<int, PassPair> eager;
    for (const PipelinePass& pass : passes_) {
      const int m = pass.micro_batch;
      const auto seed = static_cast<float>(10 * number + m);
      const at::Tensor x = at::full({2}, seed), dy = at::full({2}, seed / 3);
      const bool by_graph = graphs != nullptr && graphs->Has(pass.chunk, m);
      if (pass.kind == PassKind::kForward) {
        if (by_graph) {
          results.push_back(*graphs->Forward(pass.chunk, m, {x}));
          continue;
        }
        PassPair& pair = eager[m] = SquareOn(&gpu);
        pair.inputs[0].copy_(x);
        results.push_back(pair.forward(&sink_));
      } else {
        results.push_back(by_graph ? *graphs->Backward(pass.chunk, m, dy) : eager[m].backward(dy));
      }
    }
    EXPECT_TRUE(sink_.is_whole());
    std::vector<float> values;
    for (const at::Tensor& gradient : sink_.gradients) results.push_back(gradient);
    for (const at::Tensor& result : results) {
      values.insert(values.end(), result.data_ptr<float>(),
                    result.data_ptr<float>() + result.numel());
    }
    return values;
  }
  std::vector<bool> Taken() const {
    std::vector<bool> taken;
    for (int m = 0; m < MicroBatchesOf(passes_); ++m) taken.push_back(graphs->Has(0, m));
    return taken;
  }

  PlayedGpu gpu;
  std::unique_ptr<PassGraphs> graphs;
  std::string failure;  // why there are none any more

 private:
  const Passes passes_;
  Sink sink_;
};

PipelinePass F(int micro_batch) { return {PassKind::kForward, 0, micro_batch}; }
PipelinePass B(int micro_batch) { return {PassKind::kBackward, 0, micro_batch}; }
const Passes kInTurn = {F(0), B(0), F(1), B(1), F(2), B(2), F(3), B(3)};
const Passes kAllForward = {F(0), F(1), F(2), B(0), B(1), B(2)};
const Passes kOneAhead = {F(0), F(1), B(0), F(2), B(1), F(3), B(2), B(3)};

void ExpectTheSame(Job& job, const Passes& passes, int steps) {
  Job plain(passes, /*has_graphs=*/false);
  for (int step = 1; step <= steps; ++step) {
    EXPECT_EQ(job.Step(step), plain.Step(step)) << "step " << step;
  }
}

TEST(PassGraphsTest, StepsGiveTheSameBeforeAndAfterTheCapture) {
  for (const Passes& passes : {kInTurn, kAllForward, kOneAhead, Passes{F(0), B(0)}}) {
    Job job(passes, true);
    ExpectTheSame(job, passes, PassGraphs::kWarmUpSteps);
    EXPECT_EQ(job.gpu.captures, 0);
    EXPECT_EQ(job.gpu.launches, 0);
    ExpectTheSame(job, passes, 4);
    EXPECT_EQ(job.gpu.launches, 4 * static_cast<int>(passes.size()));
    EXPECT_EQ(job.gpu.captures, job.gpu.graphs);
  }
}

// One that writes gradients, one that adds to them; their activations are never there together.
TEST(PassGraphsTest, MicroBatchesInTurnShareTwoPairsOfGraphsAndOnePool) {
  Job job(kInTurn, true);
  for (int step = 1; step <= 6; ++step) job.Step(step);
  EXPECT_THAT(job.gpu.pools, ElementsAre(0, 0, 0, 0));
}

TEST(PassGraphsTest, MicroBatchesUnderWayTogetherHavePoolsOfTheirOwn) {
  Job job(kAllForward, true);
  for (int step = 1; step <= 6; ++step) job.Step(step);
  EXPECT_THAT(job.gpu.pools, ElementsAre(0, 0, 1, 1, 2, 2));
  // Micro-batches 2 and 3 take the places of 0 and 1, but add.
  Job ahead(kOneAhead, true);
  for (int step = 1; step <= 6; ++step) ahead.Step(step);
  EXPECT_THAT(ahead.gpu.pools, ElementsAre(0, 0, 1, 1, 0, 0));
}

// The last micro-batch's gradients may come first.
TEST(PassGraphsTest, PassesThatWriteGradientsAreTheFirstOfTheirKind) {
  const Passes reversed = {F(0), F(1), F(2), B(2), B(1), B(0)};
  Job job(reversed, true);
  ExpectTheSame(job, reversed, 6);
}

TEST(PassGraphsTest, MicroBatchesThatWaitForOtherRanksAreSpared) {
  Job job(kInTurn, true, /*spares_ends=*/true);
  ExpectTheSame(job, kInTurn, 6);
  EXPECT_THAT(job.Taken(), ElementsAre(false, true, true, false));
  EXPECT_EQ(job.gpu.captures, 2);
}

// Static tensors: what a launch gave stays as it is when the next one writes there.
TEST(PassGraphsTest, ResultsAreCopiesAndInputsAreReadAnew) {
  Job job(kInTurn, true);
  for (int step = 1; step <= PassGraphs::kWarmUpSteps + 1; ++step) job.Step(step);
  const at::Tensor one = *job.graphs->Forward(0, 1, {at::full({2}, 1.0F)});
  const at::Tensor two = *job.graphs->Forward(0, 1, {at::full({2}, 2.0F)});
  EXPECT_EQ(one[0].item<float>(), 1);
  EXPECT_EQ(two[0].item<float>(), 4);
}

TEST(PassGraphsTest, AChangeOfShapesDropsTheGraphsAndWarmsUpAgain) {
  Job job(kInTurn, true), plain(kInTurn, false);
  for (int step = 1; step <= 5; ++step) job.Step(step, "4 tokens");
  EXPECT_EQ(job.gpu.graphs, 4);
  for (int step = 6; step <= 5 + PassGraphs::kWarmUpSteps; ++step) {
    EXPECT_EQ(job.Step(step, "8 tokens"), plain.Step(step)) << "step " << step;
    EXPECT_EQ(job.gpu.graphs, 0);
  }
  EXPECT_EQ(job.Step(9, "8 tokens"), plain.Step(9));
  EXPECT_EQ(job.gpu.graphs, 4);
  EXPECT_EQ(job.gpu.captures, 8);
}

TEST(PassGraphsTest, ACaptureThatFailsLeavesTheStepAsItWasAndSaysWhy) {
  for (int failing : {0, 1, 2, 3}) {
    Job job(kInTurn, true);
    job.gpu.capture_fails = failing;
    ExpectTheSame(job, kInTurn, 7);
    EXPECT_EQ(job.failure, "not permitted");
    EXPECT_EQ(job.gpu.graphs, 0);
    EXPECT_EQ(job.gpu.launches, 0);
    EXPECT_EQ(job.gpu.captures, failing + 1);
  }
}

// As LibTorch does where it cannot go on.
TEST(PassGraphsTest, APassThatThrowsInACaptureIsSuchAFailure) {
  PlayedGpu gpu;
  Sink sink(1);
  PassGraphs graphs(
      gpu.Open(), Passes{F(0), B(0)}, false,
      [&](int /*chunk*/) {
        PassPair pair = SquareOn(&gpu);
        pair.forward = [](GradientSink* /*sink*/) -> at::Tensor {
          throw std::runtime_error("operation not permitted when stream is capturing");
        };
        return pair;
      },
      &sink);
  for (int step = 0; step < PassGraphs::kWarmUpSteps; ++step) {
    EXPECT_TRUE(graphs.BeginStep("").ok());
  }
  const absl::Status captured = graphs.BeginStep("");
  EXPECT_THAT(captured.message(), HasSubstr("not permitted when stream is capturing"));
  EXPECT_FALSE(graphs.Has(0, 0));
}

TEST(PassGraphsTest, ALaunchThatFailsIsTheStepsError) {
  Job job(kInTurn, true);
  for (int step = 1; step <= PassGraphs::kWarmUpSteps + 1; ++step) job.Step(step);
  job.gpu.launch_fails = job.gpu.launches;
  const auto output = job.graphs->Forward(0, 0, {at::zeros({2})});
  EXPECT_EQ(output.status().message(), "the launch failed");
}

TEST(PassGraphsDeathTest, InputsOfAnotherShapeAreABrokenInvariant) {
  Job job(kInTurn, true);
  for (int step = 1; step <= PassGraphs::kWarmUpSteps + 1; ++step) job.Step(step);
  EXPECT_DEATH((void)job.graphs->Forward(0, 0, {at::zeros({1})}), "where a graph reads");
}

struct Reason {
  std::vector<std::string> settings;
  ParallelSizes sizes;
  std::string text;  // empty: there is none
};

TEST(WhyNoGraphsTest, EveryRunThatCannotHasItsReason) {
  const std::vector<Reason> reasons = {
      {{}, {}, ""},
      {{"train.micro_batch=4"}, {}, ""},
      {{"train.precision=bf16", "parallel.zero=0"}, {}, ""},
      {{"train.micro_batch=1"}, {.pipeline = 2}, ""},
      {{"train.micro_batch=1"}, {.data = 4}, ""},  // 4 micro-batches
      {{"train.device=cpu"}, {}, "train.device is not cuda"},
      {{"model.experts=4"}, {}, "how many rows each expert gets"},
      {{"parallel.tensor=2"}, {.tensor = 2}, "tensor axis"},
      {{"parallel.context=2"}, {.context = 2}, "context axis"},
      {{"parallel.zero=2"}, {.data = 2}, "parallel.zero = 2"},
      {{"model.dropout=0.1"}, {}, "dropout"},
      {{"train.recompute=full:0"}, {}, "recomputed"},
      {{"parallel.schedule=zb-h1", "train.micro_batch=1"}, {.pipeline = 2}, "zb-h1"},
      {{"train.micro_batch=4"}, {.data = 2}, "of 2 micro-batches"},
  };
  for (const Reason& reason : reasons) {
    std::vector<std::string> settings = {"data.prefix=none", "train.precision=fp32",
                                         "train.global_batch=16", "train.device=cuda"};
    settings.insert(settings.end(), reason.settings.begin(), reason.settings.end());
    absl::StatusOr<TrainConfig> config = LoadTrainConfig("", settings, "tiny");
    ASSERT_TRUE(config.ok()) << config.status();
    config->model.vocabulary = 512;
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(*config, reason.sizes);
    ASSERT_TRUE(plan.ok()) << plan.status() << reason.text;
    const std::string why = WhyNoGraphs(*config, *plan);
    EXPECT_EQ(why.empty(), reason.text.empty()) << why << reason.text;
    EXPECT_THAT(why, HasSubstr(reason.text));
  }
}

}  // namespace
}  // namespace weft::train
