// What a rank knows of the others of its job: the host, the place and the costs of all, and how it
// reaches those that it was planned to connect to or has asked for.
//
// Every rank gives one record (rendezvous/fast_init.h): its host, its address on each transport
// that it has opened, its place, and of rank 0 the costs. Rank 0 gets all records and makes one
// table of the hosts, the costs and the places, which the others read from the store. In a small
// job, of up to 64 ranks, it has everybody's addresses too, and no rank but rank 0 reads a record;
// else a rank gets the records of its neighbours, and looks another's address up when that is first
// wanted. A process that comes into a job which goes on reads records in any case.
//
// Exchange() is called once, before anything else; then all but LookUp() is constant, until
// TakeReplaced() is called, while nobody uses it otherwise. Of replaced ranks the first looks at
// the records of those before them: where hosts and places are the same, the table stays as it is.
#ifndef WEFT_COLLECTIVES_RANK_DIRECTORY_H_
#define WEFT_COLLECTIVES_RANK_DIRECTORY_H_

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "collectives/endpoint.h"
#include "collectives/group_place.h"
#include "collectives/peers.h"
#include "collectives/planner/cost.h"
#include "collectives/record_lookup.h"
#include "collectives/rejoin.h"
#include "collectives/rendezvous/fast_init.h"

namespace weft::collectives {

class RankDirectory {
 public:
  // What this rank tells the others.
  struct Own {
    std::array<std::string, kTransportsMax> addresses;  // by transport; empty: it is not open
    RankPlace place;
    planner::CostTable costs;  // rank 0's alone count
  };
  using Addresses = std::vector<std::pair<Rank, std::string>>;
  // Called once for each rank that was looked up, by a thread of the directory's own.
  using Found = std::function<void(Rank rank, absl::StatusOr<std::string> address)>;

  // Gives `own`, learns the table and returns the addresses that this rank wants at once, on
  // transport(); a job of one rank asks nobody. kDeadlineExceeded (store.timeout) names the ranks
  // that gave no record; kFailedPrecondition: a rank has another setting of "transport".
  absl::StatusOr<Addresses> Exchange(const RejoinableOptions& options, Own own, Found found);

  // After Exchange(), where ranks were replaced: learns of them, and returns their addresses.
  absl::StatusOr<Addresses> TakeReplaced(const RejoinableOptions& options,
                                         const Rejoining& rejoining);

  // The number of a rank's host; hosts are numbered by their lowest ranks.
  int host(Rank rank) const { return hosts_[rank.index()]; }
  const RankPlace& place(Rank rank) const { return places_[rank.index()]; }  // host: its number
  const planner::CostTable& costs() const { return own_.costs; }             // rank 0's
  // Which transport reaches a rank: shared memory within this host where that is open, the
  // network's between hosts.
  int transport(Rank rank) const;

  // Asks for the address of a rank that Exchange() did not bring. Thread-safe.
  void LookUp(Rank rank) { lookup_->Ask(rank.value()); }
  // Waits for the request under way; nothing is found afterwards.
  void StopLookingUp() { lookup_.reset(); }

 private:
  FastInitOptions::Wanted RecordsWantedBy(const RejoinableOptions& options) const;
  absl::StatusOr<JobGroups> ExchangeRecords(const RejoinableOptions& options,
                                            const FastInitOptions& init);
  // What the first replaced rank tells the others: "table" where it has made a new one.
  absl::StatusOr<std::string> RenewTable(const RejoinableOptions& options,
                                         const FastInitOptions& init,
                                         const std::map<int, MemberRecord>& before,
                                         const std::map<int, MemberRecord>& now);
  // Makes the table, as rank 0, or reads it; takes it and returns it.
  absl::StatusOr<std::string> ShareTable(const RejoinableOptions& options, const JobGroups& job);
  absl::StatusOr<std::string> ReadTable(const RejoinableOptions& options, const std::string& key);
  absl::Status TakeTable(absl::string_view table);
  // After TakeTable(), as transport() is asked: of all ranks but this one.
  absl::StatusOr<Addresses> AddressesInTable(absl::string_view table) const;
  absl::StatusOr<std::string> AddressIn(const MemberRecord& record, Rank rank) const;
  // The address that `word` has: of `rank`, on the transport that reaches it.
  absl::StatusOr<std::string> AddressInWord(absl::string_view word, Rank rank) const;

  Own own_;
  Rank rank_;
  std::string wanted_transport_;   // the setting
  std::vector<int> hosts_;         // by rank of the job
  std::vector<RankPlace> places_;  // likewise
  std::unique_ptr<RecordLookup> lookup_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RANK_DIRECTORY_H_
