// All-to-all by one message from each rank to each other, which direct and pairwise have in common.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_EXCHANGE_H_
#define WEFT_COLLECTIVES_ALGORITHMS_EXCHANGE_H_

#include <vector>

#include "collectives/schedule.h"

namespace weft::collectives {

// Exchange d of 1 .. n-1 sends to the rank d before and receives from the rank d behind. At most
// `at_once` of them are under way: an exchange begins when those before it, but for the latest
// at_once - 1, have ended.
RankSchedule ExchangeAll(const CollectiveSpec& spec, int at_once);

// By group rank: the number of the exchange, from 1, in which `rank` sends to it when `size` ranks
// exchange pairwise (pairwise.cc); 0 for `rank` itself. Read from the schedule.
std::vector<int> PairwiseSteps(int rank, int size);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_EXCHANGE_H_
