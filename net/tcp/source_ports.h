// Planned source ports: switches hash them, so they choose the paths of a link's sockets
// (docs/path-planning.md).
//
// A file, the same for all processes of a job, one link a line; '#' begins a comment:
//
//   # rank  peer  source port of each socket of the link from rank to peer
//   0       1     49152 49301
//
// A link has as many sockets as it has ports; links without a line are made as ever.
#ifndef WEFT_NET_TCP_SOURCE_PORTS_H_
#define WEFT_NET_TCP_SOURCE_PORTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"

namespace weft::net {

inline constexpr int kLinkSocketsMax = 64;

class SourcePorts {
 public:
  SourcePorts() = default;  // none are planned

  // The lines of `self` among those of `text`. InvalidArgument names origin:line and what is wrong,
  // in lines of other ranks too.
  static absl::StatusOr<SourcePorts> Parse(absl::string_view text, Rank self,
                                           absl::string_view origin);
  // "": none are planned. NotFound and the like: the file cannot be read.
  static absl::StatusOr<SourcePorts> FromFile(const std::string& path, Rank self);

  // One for each socket of the link to `peer`; empty: none are planned.
  absl::Span<const uint16_t> For(Rank peer) const;

 private:
  std::map<Rank, std::vector<uint16_t>> ports_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SOURCE_PORTS_H_
