// The replacement of some ranks, in a worker: new processes in their place, and the survivors of
// their groups, who wait for nothing but that.
#ifndef WEFT_TOOLS_INIT_REPLACEMENT_H_
#define WEFT_TOOLS_INIT_REPLACEMENT_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "collectives/store/client/store_client_core.h"
#include "collectives/store/relay/store_link.h"
#include "tools/init/simulated_rank.h"

namespace weft::init {

// The last ranks of the job are those that are replaced, together.
std::vector<int> ReplacedRanks(const Options& options);

// What a survivor asks of the store: to hear of each of its groups that loses a rank; empty for
// most.
std::vector<collectives::StoreRequest> WatchesOf(const Options& options, int rank);

// A process in the place of rank `rank`, of generation 1: connects, exchanges records with the
// other new ones, reads those of the others that it needs; the first tells the groups.
class NewRank {
 public:
  NewRank(const ProcessContext& context, int rank, const collectives::StoreLinkOptions& link,
          std::function<void()> finished);
  void Start() { link_.Dial(); }
  collectives::StoreLink& link() { return link_; }
  const absl::Status& status() const { return status_; }
  const collectives::StoreClientCore& core() const { return core_; }

 private:
  void Changed();
  void Tell();

  const ProcessContext& context_;
  const int rank_;
  const std::vector<int> replaced_;
  collectives::StoreClientCore core_;
  collectives::StoreLink link_;
  std::function<void()> finished_;
  bool asked_ = false;
  size_t left_ = 0;  // answers
  uint64_t exchange_ = 0;
  absl::Status status_;
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_REPLACEMENT_H_
