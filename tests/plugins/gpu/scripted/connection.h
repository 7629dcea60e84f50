// One connection of a channel as a kernel of NCCL's works on it: slots of a ring of kSteps buffers,
// filled by the sender and emptied by the receiver, in the protocols Simple (a slot's bytes as they
// are, told of by a counter) and LL (each 8 bytes with 8 of flags). The proxy thread with the
// network plugin stands on the other side. One thread at a time.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_CONNECTION_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_CONNECTION_H_

#include <cstddef>
#include <cstdint>

#include "tests/plugins/gpu/scripted/layout.h"

namespace weft::scripted {

struct Protocol {
  bool ll = false;
  int slices_per_chunk = 1, steps_per_slice = 1;  // of the simple protocol
  size_t step_bytes = 0;                          // of a slot's data
  size_t ll_slot_bytes = 0;                       // of a slot's lines
};

// Thrown where a kernel is to end because its communicator was aborted.
struct Aborted {};

// dst = a + b, of `bytes` bytes.
using Reduction = void (*)(char* dst, const char* a, const char* b, size_t bytes);

class Connections {
 public:
  // Either may be null.
  Connections(const Layout& layout, const Communicator& comm, const Protocol& protocol,
              ConnInfo* recv, ConnInfo* send);
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // A chunk: what was received (if `receives`), reduced with `input` if that is given too, goes to
  // `output` if that is given, and to the next if `sends`. `bytes` below zero count as none: slots
  // go by empty, for the proxies count them.
  struct Operation {
    bool receives = false, sends = false;
    const char* input = nullptr;
    char* output = nullptr;
    int64_t bytes = 0;
  };
  void Do(const Operation& operation, Reduction reduction = nullptr);

 private:
  void DoSlice(const Operation& operation, size_t offset, size_t bytes, Reduction reduction);
  void DoLl(const Operation& operation, size_t bytes, Reduction reduction);
  char* SimpleSlot(const ConnInfo& conn, uint64_t step) const;
  void AwaitFilled(uint64_t step);
  void AwaitFree(uint64_t step);
  template <typename Condition>
  void Await(Condition&& condition);

  const Layout& layout_;
  const Communicator& comm_;
  const Protocol protocol_;
  ConnInfo *recv_, *send_;
  uint64_t recv_step_ = 0, send_step_ = 0;
};

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_CONNECTION_H_
