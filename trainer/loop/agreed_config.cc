#include "trainer/loop/agreed_config.h"

#include <cstddef>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "topology/host/affinity.h"
#include "trainer/resume_identity.h"

namespace weft::train {

absl::Status CheckSameConfig(const TrainConfig& config, Agreement& world) {
  std::string mine = absl::StrCat(config.text, "resolved precision = ", NameOf(config.precision));
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, world.Gather(mine));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    std::string difference = DescribeDifference(all[0], all[rank]);
    if (difference.empty()) continue;
    return AsAgreed(absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " has another config than rank 0: ", difference, " on rank ", rank)));
  }
  return absl::OkStatus();
}

absl::StatusOr<CoreShare> ChooseByCores(TrainConfig& config, const ParallelGroups& groups,
                                        int threads, absl::string_view before) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        groups.world->Gather(absl::StrCat(JobCores(), " ", threads, " ", before)));
  const ParallelSizes sizes = SizesOf(groups.mesh);
  bool is_chosen = false;
  std::vector<RankCores> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::string> words = absl::StrSplit(all[rank], ' ');
    RankCores& one = ranks.emplace_back();
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &one.cores) ||
        !absl::SimpleAtoi(words[1], &one.threads)) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " sent '", all[rank],
                                              "' as its numbers of cores and threads"));
    }
    is_chosen = is_chosen || TakeCoreChoice(words[2], sizes, config);
    one.host = rank < groups.hosts.size() ? groups.hosts[rank] : 0;
  }
  const CoreShare share = ShareOf(ranks, sizes.tensor);
  if (!is_chosen) FitToCores(config, sizes, share);
  return share;
}

}  // namespace weft::train
