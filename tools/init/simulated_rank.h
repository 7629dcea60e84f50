// One rank of weft-init: a real connection and a real client, without a process of its own. It goes
// the way of any rank into its job: connects, registers (a barrier of all), exchanges its record
// for those that it needs (with Options::all_records, for everybody's), computes its groups, opens
// its connections. With Options::group_maker that makes its groups in place of the exchange.
#ifndef WEFT_TOOLS_INIT_SIMULATED_RANK_H_
#define WEFT_TOOLS_INIT_SIMULATED_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/rendezvous/fast_init.h"
#include "tools/init/client.h"
#include "tools/init/group_maker.h"
#include "tools/init/options.h"
#include "tools/init/peer_links.h"
#include "tools/init/process_context.h"
#include "tools/init/shared.h"

namespace weft::init {

// What rank `rank` tells the others; everybody can compute it, so that every byte can be checked.
collectives::MemberRecord RecordOf(const Options& options, int rank, int generation);
// All ranks' records as the exchange gives them.
Expected ExchangeOf(const Options& options);

// The ranks whose records a rank needs.
collectives::RankSet WantedBy(const Options& options, int rank);
// Bytes of records for those of the ranks from `first` to before `end` together: of a host's, or
// of those below a relay above hosts'.
int64_t ExchangeBytes(const Options& options, const Expected& exchange, int first, int end);
// That a host's relay gets, or, without relays, a rank; on average.
int64_t MeanExchangeBytes(const Options& options);

ClientSetup SetupOf(const ProcessContext& context, int rank,
                    const collectives::StoreLinkOptions& link);
collectives::StoreHello HelloOf(const ProcessContext& context, int rank, int generation);

class SimulatedRank {
 public:
  // `settled` is called once: it is connected, or it failed; `finished` when it is through.
  SimulatedRank(const ProcessContext& context, int rank, const collectives::StoreLinkOptions& link,
                PeerLinks& links, std::function<void()> settled, std::function<void()> finished);

  void Start();
  Client& client() { return *client_; }
  const Client& client() const { return *client_; }
  int rank() const { return rank_; }
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const absl::Status& status);
  void Mark(Phase phase);
  void Connected(const absl::Status& status);
  void Register();
  void Exchange();
  void ComputeGroups();
  void RunGroupMaker();
  void OpenConnections();

  const ProcessContext& context_;
  const int rank_;
  PeerLinks& links_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<GroupMaker> maker_;
  std::function<void()> settled_;
  std::function<void()> finished_;
  bool settled_once_ = false;
  bool finished_once_ = false;
  absl::Status status_;
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_SIMULATED_RANK_H_
