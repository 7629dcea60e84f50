// What all verbs links of one transport share.
#ifndef WEFT_NET_VERBS_WIRE_SHARED_H_
#define WEFT_NET_VERBS_WIRE_SHARED_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "net/tcp/path_news.h"
#include "net/verbs/queue_pair_ways.h"
#include "net/verbs/rails.h"

namespace weft::net {

class VerbsFlush;

struct VerbsShared {
  std::shared_ptr<Rails> rails;
  VerbsFlush* flush = nullptr;
  absl::Time now;  // of this turn
  std::string host;
  int self = 0;  // rank
  PlannedWays ways;
  std::unique_ptr<PathNews> news;  // with `ways`
  bool has_told_of_plans = false;  // the log says that one would have helped
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_WIRE_SHARED_H_
