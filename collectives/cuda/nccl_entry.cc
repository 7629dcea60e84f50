#include "collectives/cuda/nccl_entry.h"

#include <dlfcn.h>

#include <cstring>

namespace weft::collectives {
namespace {

template <typename Function>
bool Look(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const char* NcclEntry::Find(void* library) {
  int (*version)(int*) = nullptr;
  if (!Look(library, "ncclGetVersion", version) || version(&version_) != 0) return "ncclGetVersion";
  Look(library, "ncclCommInitRankConfig", config_);
  Look(library, "ncclCommSplit", split_);
  Look(library, "ncclCommInitRankScalable", scalable_);
  return Look(library, "ncclCommInitRank", init_) ? nullptr : "ncclCommInitRank";
}

int NcclEntry::Init(WeftNcclCommunicator** communicator, int size, int rank,
                    const uint8_t (*ids)[kWeftNcclIdBytes], int id_count, const char** call) const {
  static_assert(sizeof(Id) == kWeftNcclIdBytes);
  if (scales() && id_count > 1) {
    *call = "ncclCommInitRankScalable";
    return scalable_(communicator, size, rank, id_count, reinterpret_cast<const Id*>(ids), nullptr);
  }
  Id id;
  std::memcpy(id.bytes, ids[0], kWeftNcclIdBytes);
  if (config_ != nullptr) {
    *call = "ncclCommInitRankConfig";
    return config_(communicator, size, id, rank, nullptr);
  }
  *call = "ncclCommInitRank";
  return init_(communicator, size, id, rank);
}

int NcclEntry::Split(WeftNcclCommunicator* parent, int color, int key, WeftNcclCommunicator** child,
                     const char** call) const {
  *call = "ncclCommSplit";
  return split_(parent, color, key, child, nullptr);
}

}  // namespace weft::collectives
