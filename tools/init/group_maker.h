// Another way for a rank to come to its groups than by the exchange, such as that of a peer which
// is measured beside it.
#ifndef WEFT_TOOLS_INIT_GROUP_MAKER_H_
#define WEFT_TOOLS_INIT_GROUP_MAKER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "tools/init/client.h"
#include "topology/job/mesh.h"

namespace weft::init {

class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  // Calls `done` once, from the poller's thread.
  virtual void Run(std::function<void(const absl::Status&)> done) = 0;
};

// Makes the maker of one rank's groups; the client and the mesh outlive it.
using MakeGroupMaker =
    std::function<std::unique_ptr<GroupMaker>(Client&, const topology::Mesh&, int rank)>;

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_GROUP_MAKER_H_
