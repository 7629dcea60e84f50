// A switch's hash as one word of text, on command lines and in files:
//
//   linux:seed=1000              also policy=3, fields=0x37
//   crc16-ccitt:seed=7,offset=3  also select=modulo|threshold|resilient, buckets=256, fields=0x37
//   linear:bits=2,origin=...     learned, as learned_hash.h writes it
//   table:members=4,wrong=...    likewise
//
// "crc16" is crc16-ccitt. What is not said has SwitchHashOptions' value; Linux selects by
// threshold.
#ifndef WEFT_TOPOLOGY_ECMP_HASH_TEXT_H_
#define WEFT_TOPOLOGY_ECMP_HASH_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/ecmp/switch_hash.h"

namespace weft::topology {

// InvalidArgument names the part that is wrong, and what would be right.
absl::StatusOr<SwitchHash> ParseHash(absl::string_view text);
std::string HashText(const SwitchHashOptions& options);  // ParseHash() reads it back

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_HASH_TEXT_H_
