// How communicators are made by whichever NCCL is loaded: found in it at run time, because a
// program that was built with a new NCCL may meet an older one.
//
//   ncclCommInitRank          always
//   ncclCommInitRankConfig    2.14 and later: in its place
//   ncclCommSplit             2.18 and later: from a communicator that has all its ranks, through
//                             whose connections the new one's ranks find each other
//   ncclCommInitRankScalable  2.23 and later: several unique ids, each of which gathers a block of
//                             ranks; one gathers all of them one after the other
//
// Includes nothing of CUDA or NCCL, whose interface to these calls is stable (an id is 128 bytes, a
// null configuration is the default one), so that tests script a library of their own. No state;
// thread-safe as far as NCCL is.
#ifndef WEFT_COLLECTIVES_CUDA_NCCL_ENTRY_H_
#define WEFT_COLLECTIVES_CUDA_NCCL_ENTRY_H_

#include <cstdint>

#include "collectives/cuda/device_table.h"

namespace weft::collectives {

class NcclEntry {
 public:
  // In a library that dlopen() gave. Null: all is there; else the name of what it lacks.
  const char* Find(void* library);

  int version() const { return version_; }  // of the library, as 22809
  bool splits() const { return split_ != nullptr; }
  bool scales() const { return scalable_ != nullptr; }

  // NCCL's result, 0 or ncclInProgress (7) for success; `call` becomes the function that was
  // called. Takes the first of several ids where NCCL has no ncclCommInitRankScalable.
  int Init(WeftNcclCommunicator** communicator, int size, int rank,
           const uint8_t (*ids)[kWeftNcclIdBytes], int id_count, const char** call) const;
  // splits() only. Ranks of one `color` come together, in the order of `key`.
  int Split(WeftNcclCommunicator* parent, int color, int key, WeftNcclCommunicator** child,
            const char** call) const;

 private:
  struct Id {
    uint8_t bytes[kWeftNcclIdBytes];
  };

  int version_ = 0;
  int (*init_)(WeftNcclCommunicator**, int size, Id id, int rank) = nullptr;
  int (*config_)(WeftNcclCommunicator**, int size, Id id, int rank, void* config) = nullptr;
  int (*split_)(WeftNcclCommunicator*, int color, int key, WeftNcclCommunicator**,
                void* config) = nullptr;
  int (*scalable_)(WeftNcclCommunicator**, int size, int rank, int id_count, const Id* ids,
                   void* config) = nullptr;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CUDA_NCCL_ENTRY_H_
