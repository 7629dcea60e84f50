// Which ranks of a job have something in common, as their host, in a few bytes: what rank 0 tells
// all others after the exchange of records, so that nobody needs the records of all to plan a
// collective.
//
// Names are numbered in the order in which they come first, by rank. As text: "8*" where every 8
// consecutive ranks have another number, as hosts have under a launcher; else runs, "0x3,1x2,0x1".
// Pure functions.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_HOST_TABLE_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_HOST_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::collectives {

// By rank: the number of its name.
std::vector<int> NumberNames(absl::Span<const std::string> names);

std::string EncodeNumbers(absl::Span<const int> numbers);
// kDataLoss: not the numbers of `ranks` ranks.
absl::StatusOr<std::vector<int>> DecodeNumbers(absl::string_view text, int ranks);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_HOST_TABLE_H_
