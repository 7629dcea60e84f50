// Which of the works under way goes first, and how much of the links the others may hold meanwhile.
//
// Works of a higher priority are advanced before those of a lower one, and take their chunks to the
// links first. What a link has accepted it mostly sends in order, so a collective must not hand it
// more than a little at once where a more urgent one may come: a low work never has more than
// kLowWindow chunks of one peer at its link, and none has more than kYieldingWindow while a more
// urgent work moves. A message is one piece for its link; over shm, tcp and verbs what is
// more urgent goes before the rest of it (net::SendSource). A work that waits for its peer is not
// moving, and holds nobody back.
//
// No work has more chunks of one peer at its link than a share of the requests that the link holds.
// Else, where two ranks start large works of two groups in different orders, the first of each
// would take all requests, and each rank would wait for the work that the other cannot post.
#ifndef WEFT_COLLECTIVES_PRIORITIES_H_
#define WEFT_COLLECTIVES_PRIORITIES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/operation.h"

namespace weft::collectives {

// Chunks: two keep a link busy.
inline constexpr uint32_t kYieldingWindow = 2, kLowWindow = 4;
// A work may have one in so many of a link's requests.
inline constexpr uint32_t kWorksAtLink = 16;

// The driver's.
class Priorities {
 public:
  // `requests`: that a link holds in a direction (transport.requests).
  explicit Priorities(int64_t requests)
      : window_(static_cast<uint32_t>(std::max<int64_t>(requests / kWorksAtLink, 1))) {}

  // The most urgent first; of equal ones, those that were started first.
  static void Order(std::vector<std::shared_ptr<Operation>>& active);

  // Before works are advanced, in their order: which priority counts as urgent now.
  void BeginTurn(const std::vector<std::shared_ptr<Operation>>& active, int64_t now_ns);
  // How many chunks of one peer the work may have at its link.
  uint32_t WindowOf(const Operation& operation) const;

  // A work that has ended well.
  void Count(const Operation& operation, int64_t end_ns);
  // "high: 12 works, 3.4 MB, 0.21 ms each": a line for each priority that there was.
  std::string Describe() const;

 private:
  struct Row {
    int64_t works = 0, bytes = 0, busy_ns = 0;
  };
  const uint32_t window_;  // of a work that yields to none
  Priority urgent_ = Priority::kLow;
  std::array<Row, kPriorityCount> rows_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_PRIORITIES_H_
