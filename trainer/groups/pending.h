// A group's call under way, and who keeps the tensors that it reads and writes until it has ended.
#ifndef WEFT_TRAINER_GROUPS_PENDING_H_
#define WEFT_TRAINER_GROUPS_PENDING_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/communicator.h"
#include "trainer/groups/nccl_collectives.h"
#include "trainer/groups/staging.h"

namespace weft::train {

// Tensors of works that nobody waits for any more, as where an error ends the pass that would have:
// kept until the works are done, which read and write them. Used by one thread.
class LeftTensors {
 public:
  void Keep(collectives::WorkPtr work, std::vector<at::Tensor> tensors);

 private:
  struct Kept {
    collectives::WorkPtr work;  // null: of NCCL
    std::vector<at::Tensor> tensors;
  };
  std::vector<Kept> kept_;
};

// A collective or a message under way. Its tensors belong to it until Wait; where it goes without
// that, its group keeps them.
struct Pending {
  Pending() = default;
  Pending(Pending&& other) noexcept = default;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  collectives::WorkPtr work;  // of the communicator; null: none
  // In its place work of NCCL, which is outlived by what it belongs to.
  struct OnGpu {
    NcclCollectives* by = nullptr;
    NcclCollectives::Work work;
  };
  std::optional<OnGpu> nccl;
  std::vector<at::Tensor> tensors;    // kept alive
  std::shared_ptr<LeftTensors> left;  // the group's; null: moved from
  Arrivals arrivals;                  // what Wait copies
  const char* name = "";              // literal, for the trace
  const char* wait_name = "";         // literal, for the trace
  int64_t start_ns = 0;               // of the call
  int64_t bytes = 0;                  // of the whole buffer

  // Whether Wait would not block. What NCCL does counts as under way until then, so that all ranks
  // give their GPUs the collectives of several groups in one order.
  bool done() const { return !nccl.has_value() && (work == nullptr || work->done()); }
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_PENDING_H_
