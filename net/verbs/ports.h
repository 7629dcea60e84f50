// What there is to choose from: the usable ports of all devices, each by itself.
#ifndef WEFT_NET_VERBS_PORTS_H_
#define WEFT_NET_VERBS_PORTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "net/verbs/nic.h"
#include "net/verbs/options.h"
#include "net/verbs/verbs.h"

namespace weft::net {

// See ListVerbsPorts().
absl::StatusOr<std::vector<VerbsPort>> ListPorts(Nic& nic, const VerbsOptions& options);
absl::StatusOr<std::vector<VerbsPort>> ListPorts(Nic& nic, const Settings& settings);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_PORTS_H_
