// Tells the links of one transport when the reports about paths have changed, by whomever of this
// process: they pass them on to the other side, and follow the plan.
#ifndef WEFT_NET_TCP_PATH_NEWS_H_
#define WEFT_NET_TCP_PATH_NEWS_H_

#include <cstdint>
#include <set>

#include "base/poller.h"
#include "net/tcp/planned_ways.h"

namespace weft::net {

class PathFollower {
 public:
  virtual ~PathFollower() = default;
  virtual void OnPathNews() = 0;
};

// Both must outlive it.
class PathNews final : public PollHandler {
 public:
  PathNews(Poller& poller, const PlannedWays& ways);
  void Add(PathFollower& one);
  void Remove(PathFollower& one) { followers_.erase(&one); }
  void Tell();  // if there is any

 private:
  void OnDeadline(absl::Time now) override;

  const PlannedWays& ways_;
  uint64_t version_ = 0;
  std::set<PathFollower*> followers_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_PATH_NEWS_H_
