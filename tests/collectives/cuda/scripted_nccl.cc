// An NCCL for tests: of the version and with the calls that the build says, each of which is
// written down. SCRIPTED_NCCL_VERSION, as 21903.
#include <cstdio>
#include <cstring>
#include <string>

#define SCRIPTED_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Id {
  unsigned char bytes[128];
};

std::string calls;
int made = 0;
int result = 0;

// An id is named by its first byte; it is a whole one only if all its bytes are that.
std::string Name(const Id& id) {
  for (unsigned char byte : id.bytes) {
    if (byte != id.bytes[0]) return "torn";
  }
  return std::to_string(id.bytes[0]);
}

int Made(void** communicator, const std::string& call) {
  calls += call + "\n";
  auto number = static_cast<size_t>(++made);
  std::memcpy(communicator, &number, sizeof(number));
  return result;
}

[[maybe_unused]] std::string Config(const void* config) {
  return config == nullptr ? "default" : "own";
}

}  // namespace

SCRIPTED_EXPORT const char* ScriptedCalls() { return calls.c_str(); }
SCRIPTED_EXPORT void ScriptedBegin(int what_calls_return) {
  calls.clear();
  made = 0;
  result = what_calls_return;
}

SCRIPTED_EXPORT int ncclGetVersion(int* version) {
  *version = SCRIPTED_NCCL_VERSION;
  return 0;
}
SCRIPTED_EXPORT int ncclCommInitRank(void** communicator, int size, Id id, int rank) {
  return Made(communicator, "InitRank size=" + std::to_string(size) + " id=" + Name(id) +
                                " rank=" + std::to_string(rank));
}
#if SCRIPTED_NCCL_VERSION >= 21400
SCRIPTED_EXPORT int ncclCommInitRankConfig(void** communicator, int size, Id id, int rank,
                                           void* config) {
  return Made(communicator, "InitRankConfig size=" + std::to_string(size) + " id=" + Name(id) +
                                " rank=" + std::to_string(rank) + " config=" + Config(config));
}
#endif
#if SCRIPTED_NCCL_VERSION >= 21800
SCRIPTED_EXPORT int ncclCommSplit(void* parent, int color, int key, void** child, void* config) {
  return Made(child, "Split parent=" + std::to_string(reinterpret_cast<size_t>(parent)) +
                         " color=" + std::to_string(color) + " key=" + std::to_string(key) +
                         " config=" + Config(config));
}
#endif
#if SCRIPTED_NCCL_VERSION >= 22300
SCRIPTED_EXPORT int ncclCommInitRankScalable(void** communicator, int size, int rank, int id_count,
                                             const Id* ids, void* config) {
  std::string names;
  for (int i = 0; i < id_count; ++i) names += (i == 0 ? "" : ",") + Name(ids[i]);
  return Made(communicator, "InitRankScalable size=" + std::to_string(size) +
                                " rank=" + std::to_string(rank) + " ids=" + names +
                                " config=" + Config(config));
}
#endif
