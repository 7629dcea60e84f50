// What is known of a fabric's packets, beside its fabric file: the addresses of NICs, what each
// switch hashes, and in which order its next hops stand. weft-topo discover and learn-hash write
// it, weft-plan paths --hash reads it. A line each, '#' begins a comment:
//
//   weft-hashes 1
//   address h0 0 10.1.0.1            of NIC 0
//   hash leaf0 linux:seed=1000       hash_text.h; "*": all that have no line of their own
//   order leaf0 spine1 spine0        where it is not that of the fabric file; a neighbour with
//                                    several cables may stand there once for each
//   hash leaf1 table:members=4,...   the next hops of single flows (learned_hash.h)
//   unknown leaf2                    nothing is known of what it hashes, and nothing planned by it
//   router 10.2.0.1 spine0           a name that a switch has when it is probed
#ifndef WEFT_TOPOLOGY_ECMP_HASH_FILE_H_
#define WEFT_TOPOLOGY_ECMP_HASH_FILE_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/ecmp/fabric_hashes.h"

namespace weft::topology {

struct HashFile {
  std::map<std::pair<std::string, int>, IpAddress> addresses;  // by host, NIC
  std::map<std::string, SwitchHash> hashes;                    // by switch, or "*"
  std::map<std::string, std::vector<std::string>> orders;      // by switch: its neighbours
  std::set<std::string> unknown;                               // switches
  std::map<std::string, std::string> routers;                  // switches, by what probes call them
};

// InvalidArgument names origin:line and what is wrong.
absl::StatusOr<HashFile> ParseHashFile(absl::string_view text, absl::string_view origin);
std::string HashFileText(const HashFile& file);
// A hash as text (hash_text.h), of all switches, or a file.
absl::StatusOr<HashFile> LoadHashFile(const std::string& words);

// Hashes of all nodes and addresses of all NICs; those that the file lacks are as
// FabricHashes::Create() makes them, but that hosts hash as "*"; an unknown switch knows no flow
// (SwitchHash::Knows). FailedPrecondition: the file names what the fabric lacks, or only some hosts
// have addresses; `origin` is the file.
absl::StatusOr<FabricHashes> MakeHashes(const Fabric& fabric, const HashFile& file,
                                        absl::string_view origin);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_HASH_FILE_H_
