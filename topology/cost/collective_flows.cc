#include "topology/cost/collective_flows.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "topology/job/binary_trees.h"

namespace weft::topology {
namespace {

// The part of a group that one slot holds.
struct Part {
  int32_t slot;
  std::vector<int32_t> gpus;  // in order of rank
};

// [group][index] -> rank.
std::vector<std::vector<int32_t>> MembersOf(const Mesh& mesh, AxisSet axes) {
  std::vector<std::vector<int32_t>> groups(
      static_cast<size_t>(mesh.GroupCount(axes)),
      std::vector<int32_t>(static_cast<size_t>(mesh.GroupSize(axes))));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    auto group = static_cast<size_t>(mesh.GroupIndexOf(JobRank(rank), axes));
    groups[group][static_cast<size_t>(mesh.PositionIn(JobRank(rank), axes))] = rank;
  }
  return groups;
}

class FlowMaker {
 public:
  FlowMaker(const Traffic& traffic, const NodeShape& node, const RankBlocks& blocks, int nics)
      : traffic_(traffic), node_(node), blocks_(blocks), nics_(nics) {}

  void AddGroup(const std::vector<int32_t>& ranks) {
    size_t before = out_.flows.size();
    group_ = static_cast<int32_t>(out_.flows_of_group.size());
    size_ = static_cast<int>(ranks.size());
    SplitBySlot(ranks);
    if (size_ > 1) {
      switch (traffic_.collective) {
        case CollectiveKind::kAllToAll:
          AddAllToAll();
          break;
        case CollectiveKind::kSendReceive:
          AddSendRecv(ranks);
          break;
        default:
          AddReduction();
      }
    }
    out_.flows_of_group.push_back(static_cast<int32_t>(out_.flows.size() - before));
  }

  TrafficFlows Finish() && { return std::move(out_); }

 private:
  double S() const { return static_cast<double>(traffic_.bytes.count()); }
  int slots() const { return static_cast<int>(parts_.size()); }

  void SplitBySlot(const std::vector<int32_t>& ranks) {
    parts_.clear();
    for (int32_t rank : ranks) {
      int32_t slot = blocks_.slot_of[static_cast<size_t>(rank)];
      auto part = std::find_if(parts_.rbegin(), parts_.rend(),
                               [&](const Part& one) { return one.slot == slot; });
      if (part == parts_.rend()) {
        parts_.push_back({slot, {}});
        part = parts_.rbegin();
      }
      part->gpus.push_back(blocks_.gpu_of[static_cast<size_t>(rank)]);
    }
    most_ = least_ = parts_[0].gpus.size();
    for (const Part& part : parts_) {
      most_ = std::max(most_, part.gpus.size());
      least_ = std::min(least_, part.gpus.size());
    }
  }

  void Emit(int32_t source, int32_t source_gpu, int32_t target, int32_t target_gpu, double bytes) {
    NicsOfGpu from = NicsOf(source_gpu, blocks_.gpus, nics_);
    NicsOfGpu to = NicsOf(target_gpu, blocks_.gpus, nics_);
    int count = std::min(from.count, to.count);
    for (int i = 0; i < count; ++i) {
      SlotFlow flow{};
      flow.source = source;
      flow.target = target;
      flow.source_nic = static_cast<int16_t>(from.first + i);
      flow.target_nic = static_cast<int16_t>(to.first + i);
      flow.source_gpu = static_cast<int16_t>(source_gpu);
      flow.target_gpu = static_cast<int16_t>(target_gpu);
      flow.bytes = static_cast<int64_t>(std::llround(bytes / count));
      flow.group = group_;
      out_.flows.push_back(flow);
    }
  }

  // `bytes` from slot to slot, shared out over the ranks that both have.
  void EmitBetween(const Part& source, const Part& target, double bytes) {
    size_t channels = std::min(source.gpus.size(), target.gpus.size());
    for (size_t i = 0; i < channels; ++i) {
      Emit(source.slot, source.gpus[i], target.slot, target.gpus[i],
           bytes / static_cast<double>(channels));
    }
  }

  // The costliest group stands for all.
  void Cost(double network_steps, double inside_steps, double inside_bytes) {
    out_.network_steps = std::max(out_.network_steps, network_steps);
    out_.inside_latency = std::max(out_.inside_latency, node_.nvlink_latency * inside_steps);
    out_.inside =
        std::max(out_.inside, absl::Seconds(inside_bytes / node_.nvlink.bytes_per_second()));
  }

  void AddReduction() {
    double n = size_, m = slots();
    double rounds = traffic_.collective == CollectiveKind::kAllReduce ? 2 : 1;
    if (m > 1 && traffic_.algorithm == GroupAlgorithm::kTree) return AddTree();
    if (m > 1 && traffic_.algorithm == GroupAlgorithm::kHierarchical) {
      double g = static_cast<double>(least_);
      for (int i = 0; i < slots(); ++i) {
        EmitBetween(parts_[static_cast<size_t>(i)], parts_[static_cast<size_t>((i + 1) % slots())],
                    rounds * (m - 1) / m * S());
      }
      out_.inside_adds = true;
      return Cost(rounds * (m - 1), rounds * (g - 1), rounds * (g - 1) / g * S());
    }
    double volume = rounds * (n - 1) / n * S();
    for (int i = 0; m > 1 && i < slots(); ++i) {
      EmitBetween(parts_[static_cast<size_t>(i)], parts_[static_cast<size_t>((i + 1) % slots())],
                  volume);
    }
    double network_share = m > 1 ? m / n : 0;
    Cost(rounds * (n - 1) * network_share, rounds * (n - 1) * (1 - network_share),
         most_ > 1 ? volume : 0);
  }

  void AddTree() {
    BinaryTrees trees = MakeBinaryTrees(slots());
    for (const std::vector<int>* tree : {&trees.first, &trees.second}) {
      for (size_t i = 0; i < tree->size(); ++i) {
        if ((*tree)[i] < 0) continue;
        const Part& parent = parts_[static_cast<size_t>((*tree)[i])];
        EmitBetween(parts_[i], parent, S() / 2);
        EmitBetween(parent, parts_[i], S() / 2);
      }
    }
    Cost(2 * std::log2(slots()), 2 * static_cast<double>(most_ - 1), most_ > 1 ? 2 * S() : 0);
  }

  void AddAllToAll() {
    double n = size_;
    for (const Part& source : parts_) {
      for (const Part& target : parts_) {
        if (source.slot == target.slot) continue;
        double bytes = static_cast<double>(source.gpus.size()) * S() / n;
        for (size_t i = 0; i < target.gpus.size(); ++i) {
          // On the target's rail where the source has a rank on it.
          int32_t gpu = target.gpus[i];
          if (std::find(source.gpus.begin(), source.gpus.end(), gpu) == source.gpus.end()) {
            gpu = source.gpus[i % source.gpus.size()];
          }
          Emit(source.slot, gpu, target.slot, target.gpus[i], bytes);
        }
      }
    }
    double inside = static_cast<double>(most_) - 1;
    Cost(slots() > 1 ? n - static_cast<double>(least_) : 0, inside,
         most_ > 1 ? (n - 1) / n * S() : 0);
  }

  void AddSendRecv(const std::vector<int32_t>& ranks) {
    bool crosses = false, stays = false;
    size_t last = ranks.size() - (traffic_.wraps ? 0 : 1);
    for (size_t i = 0; i < last; ++i) {
      auto from = static_cast<size_t>(ranks[i]);
      auto to = static_cast<size_t>(ranks[(i + 1) % ranks.size()]);
      if (blocks_.slot_of[from] == blocks_.slot_of[to]) {
        stays = true;
        continue;
      }
      crosses = true;
      Emit(blocks_.slot_of[from], blocks_.gpu_of[from], blocks_.slot_of[to], blocks_.gpu_of[to],
           S());
      if (traffic_.both_ways) {
        Emit(blocks_.slot_of[to], blocks_.gpu_of[to], blocks_.slot_of[from], blocks_.gpu_of[from],
             S());
      }
    }
    Cost(crosses ? 1 : 0, stays && !crosses ? 1 : 0, stays ? S() : 0);
  }

  const Traffic& traffic_;
  const NodeShape& node_;
  const RankBlocks& blocks_;
  const int nics_;
  TrafficFlows out_;
  int32_t group_ = 0;
  int size_ = 0;                 // ranks of the group at hand
  std::vector<Part> parts_;      // of it, in order of their first rank
  size_t most_ = 0, least_ = 0;  // ranks of a part
};

}  // namespace

RankBlocks RankBlocks::Contiguous(int world, int gpus) {
  WEFT_CHECK(gpus > 0 && world % gpus == 0, "world=" << world << " gpus=" << gpus);
  RankBlocks blocks;
  blocks.slots = world / gpus;
  blocks.gpus = gpus;
  for (int32_t rank = 0; rank < world; ++rank) {
    blocks.slot_of.push_back(rank / gpus);
    blocks.gpu_of.push_back(rank % gpus);
    blocks.rank_at.push_back(rank);
  }
  return blocks;
}

NicsOfGpu NicsOf(int gpu, int gpus, int nics) {
  return {gpu * nics / gpus, std::max(1, nics / gpus)};
}

TrafficFlows FlowsOf(const Traffic& traffic, const Mesh& mesh, const NodeShape& node,
                     const RankBlocks& blocks, int nics) {
  FlowMaker maker(traffic, node, blocks, nics);
  for (const std::vector<int32_t>& ranks : MembersOf(mesh, traffic.axes)) maker.AddGroup(ranks);
  return std::move(maker).Finish();
}

}  // namespace weft::topology
