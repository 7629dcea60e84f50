// Real NCCL over the plugin: two processes on one GPU, which NCCL takes for two hosts (each has its
// own NCCL_HOSTID), all-reduce, and look whether the network was weft. NCCL and the CUDA runtime
// are loaded at run time; WEFT_TEST_NCCL and WEFT_TEST_CUDART name them where the loader does not
// find them.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = 1 << 20;         // floats: long enough for the simple protocol
constexpr int kFloat = 7, kSum = 0;        // ncclFloat32, ncclSum
constexpr int kToDevice = 1, kToHost = 2;  // cudaMemcpyKind

struct UniqueId {  // ncclUniqueId
  char bytes[128];
};

void* LoadFirst(const char* variable, std::initializer_list<const char*> names) {
  const char* given = getenv(variable);
  if (given != nullptr) return dlopen(given, RTLD_NOW | RTLD_GLOBAL);
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}
void* LoadCuda() { return LoadFirst("WEFT_TEST_CUDART", {"libcudart.so.13", "libcudart.so.12"}); }
void* LoadNccl() { return LoadFirst("WEFT_TEST_NCCL", {"libnccl.so.2"}); }

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// Zero: the sums are right.
int RunRank(int rank, const UniqueId& id) {
  void *cuda = LoadCuda(), *nccl = LoadNccl();
  auto set_device = Find<int (*)(int)>(cuda, "cudaSetDevice");
  auto allocate = Find<int (*)(void**, size_t)>(cuda, "cudaMalloc");
  auto copy = Find<int (*)(void*, const void*, size_t, int)>(cuda, "cudaMemcpy");
  auto synchronize = Find<int (*)()>(cuda, "cudaDeviceSynchronize");
  auto init = Find<int (*)(void**, int, UniqueId, int)>(nccl, "ncclCommInitRank");
  auto all_reduce =
      Find<int (*)(const void*, void*, size_t, int, int, void*, void*)>(nccl, "ncclAllReduce");
  auto destroy = Find<int (*)(void*)>(nccl, "ncclCommDestroy");
  void *comm = nullptr, *memory = nullptr;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000 + rank);
  if (set_device(0) != 0 || allocate(&memory, kCount * sizeof(float)) != 0) return 10;
  if (init(&comm, kRanks, id, rank) != 0) return 11;
  if (copy(memory, values.data(), kCount * sizeof(float), kToDevice) != 0) return 12;
  if (all_reduce(memory, memory, kCount, kFloat, kSum, comm, nullptr) != 0) return 13;
  if (synchronize() != 0) return 14;
  if (copy(values.data(), memory, kCount * sizeof(float), kToHost) != 0) return 15;
  for (size_t i = 0; i < kCount; ++i) {
    if (values[i] != static_cast<float>(2 * (i % 1000) + 1)) return 16;
  }
  return destroy(comm) == 0 ? 0 : 17;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(RealNccl, AllReducesOfTwoProcessesGoOverWeft) {
  void* cuda = LoadCuda();
  if (cuda == nullptr) GTEST_SKIP() << "no CUDA runtime (WEFT_TEST_CUDART)";
  int devices = 0;
  if (Find<int (*)(int*)>(cuda, "cudaGetDeviceCount")(&devices) != 0 || devices == 0) {
    GTEST_SKIP() << "no GPU";
  }
  void* nccl = LoadNccl();
  if (nccl == nullptr) GTEST_SKIP() << "no NCCL (WEFT_TEST_NCCL)";
  for (auto [name, value] : {std::pair{"NCCL_MNNVL_ENABLE", "0"},
                             {"NCCL_SOCKET_IFNAME", "lo"},
                             {"NCCL_NET_PLUGIN", WEFT_PLUGIN},
                             {"NCCL_DEBUG", "INFO"},
                             {"NCCL_DEBUG_SUBSYS", "INIT,NET"},
                             {"NCCL_MAX_NCHANNELS", "2"},
                             {"NCCL_RAS_ENABLE", "0"},
                             {"NCCL_NET_PLUGIN_REF_COUNT", "1"}}) {
    setenv(name, value, 1);
  }
  // A process of its own for each rank, this program again: CUDA does not survive a fork.
  std::array<pid_t, kRanks> children{};
  std::array<std::string, kRanks> logs;
  std::string id_path = absl::StrCat(testing::TempDir(), "/nccl-id-", getpid());
  for (int rank = 0; rank < kRanks; ++rank) {
    logs[static_cast<size_t>(rank)] = absl::StrCat(id_path, ".log", rank);
    children[static_cast<size_t>(rank)] = fork();
    if (children[static_cast<size_t>(rank)] == 0) {
      setenv("NCCL_HOSTID", absl::StrCat("weft-test-", rank).c_str(), 1);
      setenv("NCCL_DEBUG_FILE", logs[static_cast<size_t>(rank)].c_str(), 1);
      setenv("WEFT_TEST_ID_FILE", id_path.c_str(), 1);
      std::string number = absl::StrCat(rank);
      execl("/proc/self/exe", "nccl_real_test", "--nccl-rank", number.c_str(), nullptr);
      _exit(127);
    }
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    std::string log = ReadFile(logs[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << "\n" << log;
    EXPECT_THAT(log, testing::HasSubstr("Using network weft"));
    unlink(logs[rank].c_str());
  }
  unlink(id_path.c_str());
}

// Rank 0 makes the id and renames it into place; the other waits for it, no longer than ctest does.
int RankMain(int rank) {
  std::string path = getenv("WEFT_TEST_ID_FILE");
  UniqueId id{};
  if (rank == 0) {
    if (Find<int (*)(UniqueId*)>(LoadNccl(), "ncclGetUniqueId")(&id) != 0) return 20;
    std::ofstream(path + ".new", std::ios::binary).write(id.bytes, sizeof(id.bytes));
    if (rename((path + ".new").c_str(), path.c_str()) != 0) return 21;
  } else {
    while (access(path.c_str(), R_OK) != 0) usleep(1000);
    std::ifstream(path, std::ios::binary).read(id.bytes, sizeof(id.bytes));
  }
  return RunRank(rank, id);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--nccl-rank") return weft::RankMain(atoi(argv[2]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
