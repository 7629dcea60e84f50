// Which devices, ports and GIDs to use. Pure functions over what a Nic says, with the reasons in
// words, for logs and for weft-doctor.
#ifndef WEFT_NET_VERBS_CHOICE_H_
#define WEFT_NET_VERBS_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "net/verbs/nic.h"
#include "net/verbs/options.h"

namespace weft::net {

// A device and one of its ports, as NCCL_IB_HCA names them:
//   mlx5,bnxt      all whose names begin with mlx5 or with bnxt
//   mlx5_0:2       port 2 of those that begin with mlx5_0
//   =mlx5_0        exactly this
//   ^mlx5_3        all but those that begin with mlx5_3;  ^=mlx5_3: all but exactly this
bool DeviceIsWanted(absl::string_view filter, absl::string_view name, int port);

struct GidChoice {
  NicGid gid;
  std::string why;  // "RoCE v2, IPv4"
};

// As NCCL's: an index that was asked for; else of the usable ones (set, not link-local) the one of
// the preferred family, then of the preferred version, then the lowest index. InfiniBand: index 0.
// Link-local ones are taken where there is nothing else.
absl::StatusOr<GidChoice> ChooseGid(const std::vector<NicGid>& gids, bool ethernet,
                                    const VerbsOptions& options);

bool IsIpv4(const Gid& gid);       // ::ffff:a.b.c.d
bool IsLinkLocal(const Gid& gid);  // fe80::/10
bool IsUnset(const Gid& gid);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_CHOICE_H_
