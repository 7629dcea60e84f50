// Plays NCCL's kernels on the CPU: ring all-reduce and reduce-scatter (sums of float), all-gather,
// broadcast, and send and receive, in the protocols Simple and LL, a thread a channel. What a
// kernel does is NCCL's own device code read and written anew (src/device, v2.28.9-1); everything
// else, the host's code, is NCCL's.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_KERNELS_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_KERNELS_H_

#include <vector>

#include "tests/plugins/gpu/scripted/detour.h"

namespace weft::scripted {

// What NCCL's tables say of its kernels. Filled once, before the first kernel.
class KernelTable {
 public:
  enum class Collective { kSendRecv, kAllGather, kBroadcast, kAllReduce, kReduceScatter };
  struct Function {
    Collective collective;
    bool ll;
  };
  explicit KernelTable(const int* row_to_id);  // ncclDevFuncRowToId
  // Null: this kernel is not played.
  const Function* Find(int id) const;

 private:
  std::vector<std::pair<int, Function>> functions_;
};

// Runs a kernel to its end, or until its communicator is aborted. `arguments`: KernelArgs, the
// batches behind it, and works. Ends the process, with a sentence, for a kernel that is not played.
void PlayKernel(const KernelTable& table, std::vector<char>& arguments);

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_KERNELS_H_
