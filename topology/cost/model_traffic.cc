#include "topology/cost/model_traffic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "base/status.h"

namespace weft::topology {
namespace {

absl::Status Check(const TrainingSetup& setup, const Mesh& mesh) {
  const ModelShape& model = setup.model;
  auto error = [](absl::string_view key, int64_t value, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("model.", key, " is ", value, ": ", what));
  };
  struct Positive {
    const char* key;
    int64_t value;
  };
  constexpr int64_t kMost = int64_t{1} << 32;  // keeps products within 64 bits
  for (Positive row :
       {Positive{"layers", model.layers}, Positive{"hidden", model.hidden},
        Positive{"vocabulary", model.vocabulary}, Positive{"sequence", model.sequence},
        Positive{"micro_batch", setup.micro_batch}, Positive{"global_batch", setup.global_batch},
        Positive{"element_bytes", setup.element_bytes},
        Positive{"gradient_bytes", setup.gradient_bytes}, Positive{"interleave", setup.interleave},
        Positive{"top_k", model.top_k}, Positive{"moe_every", model.moe_every}}) {
    if (row.value < 1) return error(row.key, row.value, "must be at least 1");
    if (row.value > kMost) return error(row.key, row.value, "is absurdly large");
  }
  constexpr int64_t kTokensMost = int64_t{1} << 29;  // of a micro-batch, for the same
  if (setup.micro_batch > kTokensMost / model.sequence) {
    return error("micro_batch", setup.micro_batch,
                 absl::StrCat("sequences of ", model.sequence, " are more than ", kTokensMost,
                              " tokens at once"));
  }
  if (model.hidden > (1 << 20)) return error("hidden", model.hidden, "is absurdly large");
  if (model.layers > (1 << 16)) return error("layers", model.layers, "is absurdly large");
  if (setup.zero < 0 || setup.zero > 3) return error("zero", setup.zero, "must be from 0 to 3");
  int64_t stages = int64_t{mesh.Size(Axis::kPipeline)} * setup.interleave;
  if (model.layers % stages != 0) {
    return error("layers", model.layers,
                 absl::StrCat("must be a multiple of pipeline x interleave = ", stages));
  }
  int64_t replicas = int64_t{mesh.Size(Axis::kData)} * mesh.Size(Axis::kExpert);
  if (setup.global_batch % (replicas * setup.micro_batch) != 0) {
    return error("global_batch", setup.global_batch,
                 absl::StrCat("must be a multiple of data x expert x micro_batch = ",
                              replicas * setup.micro_batch));
  }
  if (mesh.Size(Axis::kExpert) > 1 &&
      (model.experts < 1 || model.experts % mesh.Size(Axis::kExpert) != 0)) {
    return error("experts", model.experts,
                 absl::StrCat("must be a multiple of the expert axis, ", mesh.Size(Axis::kExpert)));
  }
  return absl::OkStatus();
}

// The numbers of one step of one rank.
struct Step {
  const TrainingSetup& setup;
  const Mesh& mesh;
  const ModelShape& model = setup.model;
  int64_t tensor = mesh.Size(Axis::kTensor);
  int64_t context = mesh.Size(Axis::kContext);
  int64_t pipeline = mesh.Size(Axis::kPipeline);
  double layers = static_cast<double>(model.layers) / static_cast<double>(pipeline);
  double moe_layers = model.HasExperts() ? layers / static_cast<double>(model.moe_every) : 0;
  double micro_batches =
      static_cast<double>(setup.global_batch) /
      static_cast<double>(setup.micro_batch * mesh.Size(Axis::kData) * mesh.Size(Axis::kExpert));
  int64_t activation =
      setup.micro_batch * model.sequence * model.hidden * setup.element_bytes / context;
  int64_t kv = 2 * setup.micro_batch * model.sequence *
               (model.kv_hidden > 0 ? model.kv_hidden : model.hidden) * setup.element_bytes /
               tensor;
};

void AddTensor(const Step& step, std::vector<Traffic>& all) {
  double blocks = step.model.block == BlockKind::kParallel ? 1 : 2;
  double times = 2 * blocks * step.layers * step.micro_batches;
  Traffic traffic;
  traffic.axes = {Axis::kTensor};
  traffic.bytes = Bytes(step.activation);
  traffic.times = times;
  traffic.exposed = step.setup.overlap_tensor ? 0 : 1;
  if (!step.setup.sequence_parallel) {
    traffic.name = "tensor activations";
    traffic.collective = CollectiveKind::kAllReduce;
    all.push_back(traffic);
    return;
  }
  traffic.name = "tensor gather";
  traffic.collective = CollectiveKind::kAllGather;
  all.push_back(traffic);
  traffic.name = "tensor scatter";
  traffic.collective = CollectiveKind::kReduceScatter;
  all.push_back(traffic);
}

void AddContext(const Step& step, std::vector<Traffic>& all) {
  Traffic traffic;
  traffic.axes = {Axis::kContext};
  traffic.bytes = Bytes(step.kv);
  traffic.times = step.layers * step.micro_batches;
  traffic.exposed = step.setup.overlap_context ? 0 : 1;
  traffic.name = "context keys and values";
  traffic.collective = CollectiveKind::kAllGather;
  traffic.times *= 2;  // forward, and again for backward
  all.push_back(traffic);
  traffic.name = "context gradients";
  traffic.collective = CollectiveKind::kReduceScatter;
  traffic.times /= 2;
  all.push_back(traffic);
}

void AddExpert(const Step& step, std::vector<Traffic>& all) {
  Traffic traffic;
  traffic.name = "expert tokens";
  traffic.axes = {Axis::kExpert};
  traffic.collective = CollectiveKind::kAllToAll;
  traffic.bytes = Bytes(step.activation * step.model.top_k / step.tensor);
  traffic.times = 4 * step.moe_layers * step.micro_batches;
  all.push_back(traffic);
}

void AddPipeline(const Step& step, std::vector<Traffic>& all) {
  Traffic traffic;
  traffic.name = "pipeline";
  traffic.axes = {Axis::kPipeline};
  traffic.collective = CollectiveKind::kSendReceive;
  traffic.both_ways = true;
  traffic.wraps = step.setup.interleave > 1 && step.pipeline > 2;
  traffic.bytes = Bytes(step.activation / step.tensor);
  traffic.times = step.micro_batches * step.setup.interleave;
  if (step.setup.overlap_pipeline) {
    traffic.exposed = std::min(1.0, static_cast<double>(step.pipeline - 1) / traffic.times);
  }
  all.push_back(traffic);
}

void AddData(const Step& step, const std::string& what, AxisSet axes, int64_t parameters,
             std::vector<Traffic>& all) {
  const TrainingSetup& setup = step.setup;
  double last_chunk = setup.overlap_data ? 1.0 / setup.interleave : 1;
  Traffic traffic;
  traffic.axes = axes;
  traffic.bytes = Bytes(parameters * setup.gradient_bytes);
  traffic.exposed = last_chunk;
  traffic.name = absl::StrCat(what, "gradients");
  traffic.collective =
      setup.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
  all.push_back(traffic);
  if (setup.zero == 0) return;
  traffic.name = absl::StrCat(what, "parameters");
  traffic.collective = CollectiveKind::kAllGather;
  traffic.bytes = Bytes(parameters * setup.element_bytes);
  traffic.times = setup.zero == 3 ? 2 : 1;
  traffic.exposed = setup.overlap_data ? 0 : 1;
  all.push_back(traffic);
}

}  // namespace

ParameterCount CountParameters(const ModelShape& model, const Mesh& mesh) {
  int64_t attention = model.AttentionElements(), mlp = model.FeedForwardElements();
  int64_t norms = 4 * model.hidden;
  int64_t stage_layers = model.layers / mesh.Size(Axis::kPipeline);
  int64_t moe = model.HasExperts() ? stage_layers / model.moe_every : 0;
  int64_t tensor = mesh.Size(Axis::kTensor);
  int64_t embedding = model.vocabulary * model.hidden;

  ParameterCount count;
  count.dense = (stage_layers * attention + (stage_layers - moe) * mlp + embedding) / tensor +
                stage_layers * norms;
  count.expert = moe * (model.experts / mesh.Size(Axis::kExpert)) * mlp / tensor;
  int64_t all_moe = model.HasExperts() ? model.layers / model.moe_every : 0;
  count.total = model.layers * (attention + norms) + (model.layers - all_moe) * mlp +
                all_moe * model.experts * mlp + embedding;
  return count;
}

absl::StatusOr<std::vector<Traffic>> TrafficOf(const TrainingSetup& setup, const Mesh& mesh) {
  WEFT_RETURN_IF_ERROR(Check(setup, mesh));
  Step step{setup, mesh};
  std::vector<Traffic> all;
  if (mesh.Size(Axis::kTensor) > 1) AddTensor(step, all);
  if (mesh.Size(Axis::kContext) > 1) AddContext(step, all);
  if (mesh.Size(Axis::kExpert) > 1) AddExpert(step, all);
  if (mesh.Size(Axis::kPipeline) > 1) AddPipeline(step, all);
  ParameterCount count = CountParameters(setup.model, mesh);
  AxisSet dense{Axis::kData, Axis::kExpert, Axis::kContext};
  AxisSet expert{Axis::kData, Axis::kContext};
  if (mesh.GroupSize(dense) > 1) AddData(step, "", dense, count.dense, all);
  if (count.expert > 0 && mesh.GroupSize(expert) > 1) {
    AddData(step, "expert ", expert, count.expert, all);
  }
  if (all.empty()) return absl::InvalidArgumentError("a layout of one rank communicates nothing");
  return all;
}

absl::StatusOr<TrainingSetup> NamedSetup(absl::string_view name) {
  WEFT_ASSIGN_OR_RETURN(ModelPreset preset, FindModel(name));
  TrainingSetup setup;
  setup.model = preset.shape;
  setup.global_batch = preset.global_batch;
  setup.interleave = static_cast<int>(preset.interleave);
  return setup;
}

}  // namespace weft::topology
