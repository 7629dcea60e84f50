// Which lanes a link has, at the side that leads: spares while no queue pair works, another queue
// pair in place of one that shares a bottleneck (path_search.h), and none too many. Not
// thread-safe.
#ifndef WEFT_NET_VERBS_LANE_SELECTION_H_
#define WEFT_NET_VERBS_LANE_SELECTION_H_

#include "net/verbs/lane_set.h"
#include "net/verbs/path_search.h"
#include "net/verbs/wire_shared.h"
#include "net/verbs/wire_trouble.h"

namespace weft::net {

class LaneSelection {
 public:
  LaneSelection(VerbsShared& shared, LaneSet& lanes, const WireTrouble& trouble)
      : shared_(shared), lanes_(lanes), trouble_(trouble) {}

  // Keeps the wanted number of queue pairs connected. While none works, spares are connected as
  // well, except where no port is up: each spare has other source ports, and only some of a
  // fabric's paths may be left, each way.
  void Maintain();
  // See path_search.h. `waits`: there are entries that no lane has room for. Source ports of a file
  // are not second-guessed; with a plan directory the one that is tried takes another way of the
  // plan.
  void Search(bool waits);

 private:
  // The lane becomes a spare: its queue pair ends once all that it has in flight has arrived.
  void MakeSpare(int index);
  void StopSearch();
  void OpenCandidate();
  void Trade();
  // Once for a transport, where people look: what collisions cost, and what avoids them.
  void TellOfPlans();
  // The lane but `index` that has got least across since the comparison began.
  int SlowestBut(int index) const;

  VerbsShared& shared_;
  LaneSet& lanes_;
  const WireTrouble& trouble_;
  PathSearch search_;
  int candidate_ = -1;  // the lane that it tries
  bool candidate_carries_ = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_LANE_SELECTION_H_
