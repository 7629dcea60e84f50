// What a switch does where its hash has no known form: a linear map that its choices determine, or
// a table of flows that it was asked about. Neither knows all flows. Immutable once made.
#ifndef WEFT_TOPOLOGY_ECMP_LEARNED_HASH_H_
#define WEFT_TOPOLOGY_ECMP_LEARNED_HASH_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

// The next hop of single flows.
class HashTable {
 public:
  explicit HashTable(uint32_t members) : members_(members) {}
  // `member` below members(); a flow that is there keeps its own.
  void Add(const FiveTuple& tuple, uint32_t member);
  void SetWrong(double chance) { wrong_ = chance; }

  uint32_t members() const { return members_; }  // next hops
  double wrong() const { return wrong_; }        // chance that a flow's next hop is another
  size_t flows() const;
  std::optional<uint32_t> MemberOf(const FiveTuple& tuple) const;
  // Source ports of known flows that are like `tuple` else, ascending.
  std::vector<uint16_t> Ports(const FiveTuple& tuple) const;

  // "members=4,wrong=1e-06,10.1.0.1>10.1.1.1>4791>17=49200.2+49201.0,...": source, target, its
  // port, protocol, and source ports with their members.
  std::string ToString() const;
  static absl::StatusOr<HashTable> Parse(absl::string_view text);

 private:
  struct Key {
    IpAddress source, target;
    uint16_t target_port = 0;
    uint8_t protocol = 0;
    auto operator<=>(const Key&) const = default;
  };
  static Key KeyOf(const FiveTuple& tuple);

  uint32_t members_;
  double wrong_ = 0;
  std::map<Key, std::map<uint16_t, uint32_t>> flows_;  // member by source port
};

// Addresses and ports of a flow as bits; the first byte in the lowest ones.
using TupleBits = std::array<uint64_t, 5>;
TupleBits BitsOf(const FiveTuple& tuple);

// A map over bits, index(a ^ b ^ c) = index(a) ^ index(b) ^ index(c), of flows of one protocol,
// address family and target port. It is known for those that sums of flows give which it was made
// of.
class LinearHash {
 public:
  struct Row {
    TupleBits bits{};
    uint32_t adds = 0;  // to the index
  };
  // `origin` has index 0; `rows` are what flows may differ from it by. `index_bits`: of an index.
  LinearHash(int index_bits, const FiveTuple& origin, const std::vector<Row>& rows);

  int index_bits() const { return index_bits_; }
  size_t dimensions() const { return rows_.size(); }
  std::optional<uint32_t> IndexOf(const FiveTuple& tuple) const;

  // "bits=2,origin=10.1.0.1>10.1.1.1>49200>4791>17,0a01...=3,...": rows as hexadecimal bytes, with
  // what they add.
  std::string ToString() const;
  static absl::StatusOr<LinearHash> Parse(absl::string_view text);

 private:
  int index_bits_;
  FiveTuple origin_;
  std::vector<Row> rows_;  // each has its highest bit alone
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_LEARNED_HASH_H_
