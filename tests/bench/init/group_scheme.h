// Groups as torch makes them, one after the other, for comparison with the one exchange of
// fast_init.h. A rank goes through all groups of the job, in the same order as every other. Of its
// own groups, the first member sets a unique id in the store and the others wait for it and get it;
// after each group, its own or not, all ranks of the job meet at a barrier over the store, which is
// torch's _store_based_barrier: add 1 to a counter, look at it, wait for a key that the last sets.
//
// That barrier is what torch.distributed.new_group ends with where TORCH_DIST_INIT_BARRIER=1, and
// always did until April 2023; MegaScale (NSDI'24, 3.5) measured that.
#ifndef WEFT_TESTS_BENCH_INIT_GROUP_SCHEME_H_
#define WEFT_TESTS_BENCH_INIT_GROUP_SCHEME_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "tools/init/client.h"
#include "tools/init/group_maker.h"
#include "tools/init/measured_store.h"
#include "topology/job/mesh.h"

namespace weft::init {

class GroupScheme final : public GroupMaker {
 public:
  // `client` and `mesh` outlive it.
  GroupScheme(Client& client, const topology::Mesh& mesh, int rank)
      : client_(client), mesh_(mesh), rank_(rank) {}
  void Run(std::function<void(const absl::Status&)> done) override;

  static int64_t Groups(const topology::Mesh& mesh);
  // Requests and answers of all ranks.
  static int64_t Messages(const topology::Mesh& mesh, const MeasuredStore& store);

 private:
  void Next();
  void Meet();
  // Whether a status is an error; then it is over.
  bool Failed(const absl::Status& status);

  Client& client_;
  const topology::Mesh& mesh_;
  const int rank_;
  int axis_ = 0;
  int index_ = 0;  // of the group along the axis
  std::string key_;
  std::function<void(const absl::Status&)> done_;
};

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_GROUP_SCHEME_H_
