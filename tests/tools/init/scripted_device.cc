// A library of "CUDA code" without a GPU: host memory, and an NCCL whose ranks never meet, so that
// an all-reduce multiplies by the group's size. What it is asked for is written to the file that
// SCRIPTED_DEVICE_LOG names, a line a call.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "collectives/cuda/device_table.h"
#include "tests/collectives/cuda/scripted_table.h"

struct WeftNcclCommunicator {
  int size;
};

namespace {

void Note(const std::string& line) {
  const char* path = std::getenv("SCRIPTED_DEVICE_LOG");
  FILE* log = path == nullptr ? nullptr : std::fopen(path, "a");
  if (log == nullptr) return;
  std::fputs((line + "\n").c_str(), log);
  std::fclose(log);
}

// The scripted groups are split into halves.
constexpr int kSplitInto = 2;

WeftDeviceTable Table() {
  WeftDeviceTable t = weft::ScriptedTable();
  t.LastError = [] { return "scripted"; };
  t.DeviceCount = [](int* count) { return (*count = 2), 0; };
  t.SetDevice = [](int device) { return Note("device " + std::to_string(device)), 0; };
  t.DeviceName = [](int, char* name, size_t size) {
    return std::snprintf(name, size, "scripted"), 0;
  };
  t.Allocate = [](void** memory, size_t size) { return (*memory = std::malloc(size)), 0; };
  t.Free = [](void* memory) { return std::free(memory), 0; };
  t.CopyAsync = [](void* target, const void* source, size_t size, WeftStream*) {
    return std::memcpy(target, source, size), 0;
  };
  t.StreamCreate = [](WeftStream**, int) { return 0; };
  t.StreamDestroy = [](WeftStream*) { return 0; };
  t.StreamSynchronize = [](WeftStream*) { return 0; };
  t.NcclUniqueId = [](uint8_t* id) { return std::memset(id, 7, kWeftNcclIdBytes), 0; };
  t.NcclCan = [](int* splits, int* scales) { return (*splits = *scales = 1), 0; };
  t.NcclInit = [](WeftNcclCommunicator** made, int size, const uint8_t*, int ids, int) {
    Note("init " + std::to_string(size) + " ids " + std::to_string(ids));
    return (*made = new WeftNcclCommunicator{size}), 0;
  };
  t.NcclSplit = [](WeftNcclCommunicator* parent, int, int, WeftNcclCommunicator** child) {
    Note("split " + std::to_string(parent->size));
    return (*child = new WeftNcclCommunicator{parent->size / kSplitInto}), 0;
  };
  t.NcclDestroy = [](WeftNcclCommunicator* made) { return delete made, 0; };
  t.NcclAbort = [](WeftNcclCommunicator* const* made, int count) {
    for (int i = 0; i < count; ++i) delete made[i];
    return 0;
  };
  t.NcclAllReduce = [](WeftNcclCommunicator* made, const void* input, void* output, size_t, int,
                       int, WeftStream*) {
    const char* breaks = std::getenv("SCRIPTED_DEVICE_BREAKS");
    *static_cast<float*>(output) =
        *static_cast<const float*>(input) * static_cast<float>(breaks == nullptr ? made->size : 1);
    return 0;
  };
  return t;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const WeftDeviceTable* weft_device_table() {
  static const WeftDeviceTable table = Table();
  return &table;
}
