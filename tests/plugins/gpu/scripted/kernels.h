// Emulates NCCL's kernels on the CPU: ring all-reduce and reduce-scatter (sums of float),
// all-gather, broadcast, and send and receive, in the protocols Simple and LL, a thread a channel.
// What a kernel does is NCCL's own device code read and written anew (src/device, v2.28.9-1, and
// what of it was otherwise in the versions that Layout knows); everything else, the host's code, is
// NCCL's.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_KERNELS_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_KERNELS_H_

#include <utility>
#include <vector>

#include "tests/plugins/gpu/scripted/layout.h"

namespace weft::scripted {

// What NCCL's tables say of its kernels. Filled once, before the first kernel.
class KernelTable {
 public:
  enum class Collective { kSendRecv, kAllGather, kBroadcast, kAllReduce, kReduceScatter };
  struct Function {
    Collective collective;
    bool ll;
  };
  KernelTable(const Layout& layout, const int* row_to_id);  // ncclDevFuncRowToId
  // Null: this kernel is not emulated.
  const Function* Find(int id) const;
  void Dump() const;
  const Layout& layout() const { return layout_; }

 private:
  Layout layout_;
  std::vector<std::pair<int, Function>> functions_;
};

// Runs a kernel to its end, or until its communicator is aborted. `arguments`: KernelArgs, the
// batches behind it, and works. Ends the process, with a sentence, for a kernel that is not
// emulated.
void EmulateKernel(const KernelTable& table, std::vector<char>& arguments);

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_KERNELS_H_
