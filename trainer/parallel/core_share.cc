#include "trainer/parallel/core_share.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

CoreShare ShareOf(absl::Span<const RankCores> ranks, int tensor) {
  struct Host {
    int ranks = 0, cores = 1, threads = 0;
  };
  std::map<int, Host> hosts;
  for (const RankCores& rank : ranks) {
    Host& host = hosts[rank.host];
    host.cores = host.ranks == 0 ? rank.cores : std::min(host.cores, rank.cores);
    host.threads += rank.threads;
    ++host.ranks;
  }
  CoreShare share{.hosts = static_cast<int>(hosts.size()), .has_idle_cores = true};
  share.ranks = 0;
  for (const auto& [number, host] : hosts) {
    share.has_idle_cores = share.has_idle_cores && host.threads < host.cores;
    if (int64_t{host.ranks} * share.cores <= int64_t{share.ranks} * host.cores) continue;
    share.ranks = host.ranks;
    share.cores = host.cores;
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const size_t first = rank - rank % static_cast<size_t>(tensor);
    share.tensor_in_host = share.tensor_in_host && ranks[rank].host == ranks[first].host;
  }
  return share;
}

void FitToCores(TrainConfig& config, const ParallelSizes& sizes, const CoreShare& share) {
  const bool on_cpu = config.device == DeviceKind::kCpu;
  const bool hides_nothing =
      sizes.tensor > 1 && on_cpu && share.tensor_in_host && !share.has_idle_cores;
  if (config.tensor_chunks == 0) config.tensor_chunks = hides_nothing ? 1 : kTensorChunks;
  if (config.tensor_gathered == GatheredRows::kAuto && hides_nothing) {
    config.tensor_gathered = GatheredRows::kKeep;
  }
  // Over several hosts the ranks of one may all be of one stage, whose waits nobody fills.
  if (config.micro_batch != 0 || !on_cpu || share.hosts > 1 || !share.is_crowded()) return;
  const int64_t count = MicroBatchesOn(config, sizes, share.ranks, share.cores);
  if (count > 0) config.micro_batch = config.global_batch / sizes.data / count;
}

bool GiveBackMemory(TrainConfig& config, const TrainConfig& given) {
  const bool takes_more =
      config.micro_batch != given.micro_batch || config.tensor_gathered != given.tensor_gathered;
  config.micro_batch = given.micro_batch;
  config.tensor_gathered = given.tensor_gathered;
  return takes_more;
}

std::string CoreChoiceToWord(const TrainConfig& config, const ParallelSizes& sizes) {
  return absl::StrCat(sizes.tensor, ",", sizes.context, ",", sizes.data, ",", sizes.pipeline, ",",
                      config.tensor_chunks, ",", static_cast<int>(config.tensor_gathered), ",",
                      config.micro_batch);
}

bool TakeCoreChoice(absl::string_view word, const ParallelSizes& sizes, TrainConfig& config) {
  TrainConfig taken = config;
  const std::vector<absl::string_view> fields = absl::StrSplit(word, ',');
  int gathered = 0;
  if (fields.size() != 7 || !absl::SimpleAtoi(fields[4], &taken.tensor_chunks) ||
      !absl::SimpleAtoi(fields[5], &gathered) || !absl::SimpleAtoi(fields[6], &taken.micro_batch)) {
    return false;
  }
  taken.tensor_gathered = static_cast<GatheredRows>(gathered);
  if (CoreChoiceToWord(taken, sizes) != word) return false;
  config = std::move(taken);
  return true;
}

bool KeepCoreChoice(absl::string_view word, const ParallelSizes& sizes, TrainConfig& config) {
  TrainConfig saved = config, kept = config;
  if (config.device != DeviceKind::kCpu || !TakeCoreChoice(word, sizes, saved)) return false;
  const auto gathered = static_cast<size_t>(saved.tensor_gathered);
  if (saved.tensor_chunks < 1 || saved.micro_batch < 0 || gathered >= kGatheredRowsNames.size()) {
    return false;
  }
  if (kept.tensor_chunks == 0) kept.tensor_chunks = saved.tensor_chunks;
  if (kept.tensor_gathered == GatheredRows::kAuto) kept.tensor_gathered = saved.tensor_gathered;
  if (kept.micro_batch == 0) kept.micro_batch = saved.micro_batch;
  if (!StepPlan::Make(kept, sizes).ok()) return false;
  config = std::move(kept);
  return true;
}

std::string DescribeKeptChoice(const TrainConfig& kept, const TrainConfig& own,
                               const ParallelSizes& sizes) {
  std::vector<std::string> keys;
  const auto add = [&](absl::string_view key, const std::string& value, const std::string& here) {
    if (value != here) {
      keys.push_back(absl::StrCat(key, " = ", value, " (by the cores: ", here, ")"));
    }
  };
  const auto number = [](int64_t value) {
    return value == 0 ? std::string("open") : absl::StrCat(value);
  };
  const auto name = [](const TrainConfig& config) {
    return std::string(NameOf(config.tensor_gathered));
  };
  add("train.micro_batch", number(kept.micro_batch), number(own.micro_batch));
  if (sizes.tensor > 1) {
    add("parallel.tensor_chunks", number(kept.tensor_chunks), number(own.tensor_chunks));
    add("parallel.tensor_gathered", name(kept), name(own));
  }
  if (keys.empty()) return "";
  return absl::StrCat("kept from the checkpoint, so that sums have the same last bits: ",
                      absl::StrJoin(keys, ", "));
}

std::string DescribeCores(const TrainConfig& given, const TrainConfig& config,
                          const ParallelSizes& sizes, const CoreShare& share) {
  std::string text;
  if (given.micro_batch == 0 && config.micro_batch > 0) {
    absl::StrAppend(&text, config.global_batch / sizes.data / config.micro_batch,
                    " micro-batches, since other ranks have the cores of a stage that waits");
  }
  const bool keeps =
      given.tensor_gathered == GatheredRows::kAuto && config.tensor_gathered == GatheredRows::kKeep;
  if (sizes.tensor > 1 && (given.tensor_chunks == 0 || keeps)) {
    absl::StrAppend(
        &text, text.empty() ? "" : "; ", "the tensor axis exchanges rows in ", config.tensor_chunks,
        config.tensor_chunks == 1 ? " piece" : " pieces",
        config.tensor_gathered == GatheredRows::kKeep ? " and keeps gathered rows" : "");
  }
  if (text.empty()) return "";
  return absl::StrCat(share.ranks, share.ranks == 1 ? " rank on " : " ranks on ", share.cores,
                      share.cores == 1 ? " core: " : " cores: ", text);
}

}  // namespace weft::train
