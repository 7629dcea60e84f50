#include "topology/cost/link_loads.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// Destinations that hang on the same switches.
struct Attachment {
  std::vector<NodeId> leaves;
  std::map<Endpoint, double> from;  // bytes by source
  std::map<Endpoint, double> to;    // and by target
};

std::vector<NodeId> LeavesOf(const Fabric& fabric, Endpoint endpoint) {
  std::vector<NodeId> leaves;
  for (LinkId id : fabric.Ports(endpoint)) {
    if (fabric.link(id).up) leaves.push_back(fabric.link(id).target);
  }
  std::sort(leaves.begin(), leaves.end());
  leaves.erase(std::unique(leaves.begin(), leaves.end()), leaves.end());
  return leaves;
}

class Spreader {
 public:
  Spreader(const Routes& routes, std::vector<double>& bytes)
      : routes_(routes),
        fabric_(routes.fabric()),
        bytes_(bytes),
        waiting_(static_cast<size_t>(fabric_.nodes())),
        seen_(waiting_.size(), -1) {}

  absl::Status Spread(const Attachment& attachment) {
    ++round_;
    FindNearness(attachment.leaves);
    for (const auto& [source, amount] : attachment.from) {
      // Within one host there is no path; a source has a target on another.
      auto other = attachment.to.begin();
      while (other->first.host == source.host) ++other;
      absl::Span<const LinkId> first = routes_.First(source, other->first);
      if (first.empty()) {
        return absl::NotFoundError(absl::StrCat("no path from ", fabric_.node(source.host).name,
                                                " to ", fabric_.node(other->first.host).name));
      }
      Share(first, amount);
    }
    // From the farthest switch inwards: what arrives at one is all there before it is passed on.
    double arrived = 0;
    for (size_t i = order_.size(); i-- > 0;) {
      NodeId at = order_[i];
      double amount = std::exchange(waiting_[at.index()], 0.0);
      if (amount == 0) continue;
      if (std::find(attachment.leaves.begin(), attachment.leaves.end(), at) !=
          attachment.leaves.end()) {
        waiting_[at.index()] = amount;
        arrived += amount;
        continue;
      }
      Share(routes_.Next(at, attachment.to.begin()->first), amount);
    }
    Deliver(attachment, arrived);
    return absl::OkStatus();
  }

 private:
  void FindNearness(const std::vector<NodeId>& leaves) {
    order_ = leaves;
    for (NodeId leaf : leaves) seen_[leaf.index()] = round_;
    for (size_t i = 0; i < order_.size(); ++i) {
      for (LinkId id : fabric_.LinksFrom(order_[i])) {
        const FabricLink& link = fabric_.link(id);
        if (!link.up || fabric_.node(link.target).kind == NodeKind::kHost) continue;
        if (std::exchange(seen_[link.target.index()], round_) != round_) {
          order_.push_back(link.target);
        }
      }
    }
  }

  void Share(absl::Span<const LinkId> links, double amount) {
    double each = amount / static_cast<double>(links.size());
    for (LinkId id : links) {
      bytes_[id.index()] += each;
      waiting_[fabric_.link(id).target.index()] += each;
    }
  }

  // Each leaf passes its share of what arrived on to every target.
  void Deliver(const Attachment& attachment, double arrived) {
    for (const auto& [target, amount] : attachment.to) {
      for (NodeId leaf : attachment.leaves) {
        int cables = 0;
        for (LinkId id : fabric_.Ports(target)) {
          cables += fabric_.link(id).up && fabric_.link(id).target == leaf ? 1 : 0;
        }
        for (LinkId id : fabric_.Ports(target)) {
          const FabricLink& link = fabric_.link(id);
          if (!link.up || link.target != leaf) continue;
          bytes_[link.reverse.index()] += amount * waiting_[leaf.index()] / arrived / cables;
        }
      }
    }
    for (NodeId leaf : attachment.leaves) waiting_[leaf.index()] = 0;
  }

  const Routes& routes_;
  const Fabric& fabric_;
  std::vector<double>& bytes_;
  std::vector<double> waiting_;  // [node]
  std::vector<int> seen_;        // [node] the last round that reached it
  std::vector<NodeId> order_;    // switches, nearest first
  int round_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<double>> LinkBytes(const Routes& routes, const CostModel& model,
                                              const Placement& placement, size_t traffic) {
  const Fabric& fabric = routes.fabric();
  std::map<std::vector<NodeId>, Attachment> attachments;
  std::map<Endpoint, Attachment*> of_target;
  for (const SlotFlow& flow : model.flows(traffic).flows) {
    auto end = [&](int32_t slot, int nic) {
      int32_t host = placement[static_cast<size_t>(slot)];
      return Endpoint{model.hosts()[static_cast<size_t>(host)], nic};
    };
    Endpoint source = end(flow.source, flow.source_nic), target = end(flow.target, flow.target_nic);
    Attachment*& attachment = of_target[target];
    if (attachment == nullptr) {
      std::vector<NodeId> leaves = LeavesOf(fabric, target);
      attachment = &attachments[leaves];
      attachment->leaves = leaves;
    }
    attachment->from[source] += static_cast<double>(flow.bytes);
    attachment->to[target] += static_cast<double>(flow.bytes);
  }
  std::vector<double> bytes(static_cast<size_t>(fabric.links()), 0.0);
  Spreader spreader(routes, bytes);
  for (const auto& [leaves, attachment] : attachments) {
    WEFT_RETURN_IF_ERROR(spreader.Spread(attachment));
  }
  return bytes;
}

absl::StatusOr<std::vector<double>> StepLinkBytes(const Routes& routes, const CostModel& model,
                                                  const Placement& placement) {
  std::vector<double> sum(static_cast<size_t>(routes.fabric().links()), 0.0);
  for (size_t i = 0; i < model.job().traffic.size(); ++i) {
    if (model.flows(i).flows.empty()) continue;
    WEFT_ASSIGN_OR_RETURN(std::vector<double> bytes, LinkBytes(routes, model, placement, i));
    for (size_t link = 0; link < sum.size(); ++link) {
      sum[link] += bytes[link] * model.job().traffic[i].times;
    }
  }
  return sum;
}

}  // namespace weft::topology
