// All-to-all by one message from each rank to each other, which direct and pairwise have in common.
#ifndef WEFT_COLLECTIVES_ALGORITHMS_EXCHANGE_H_
#define WEFT_COLLECTIVES_ALGORITHMS_EXCHANGE_H_

#include "collectives/schedule.h"

namespace weft::collectives {

// Exchange d of 1 .. n-1 sends to the rank d before and receives from the rank d behind. At most
// `at_once` of them are under way: an exchange begins when those before it, but for the latest
// at_once - 1, have ended.
RankSchedule ExchangeAll(const CollectiveSpec& spec, int at_once);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_EXCHANGE_H_
