#include "tests/plugins/gpu/nccl_job.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

constexpr int kInt8 = 0, kFloat = 7, kSum = 0;  // ncclInt8, ncclFloat32, ncclSum
constexpr int kToDevice = 1, kToHost = 2;       // cudaMemcpyKind
constexpr int kNotReady = 600;                  // cudaErrorNotReady
constexpr unsigned kNoTiming = 2;               // cudaEventDisableTiming
constexpr char kRankFlag[] = "--nccl-rank";

struct UniqueId {  // ncclUniqueId
  char bytes[128];
};

void* LoadFirst(const char* variable, std::initializer_list<const char*> names) {
  if (const char* given = getenv(variable)) return dlopen(given, RTLD_NOW | RTLD_GLOBAL);
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

template <typename Function>
void Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function != nullptr) return;
  fprintf(stderr, "no function %s\n", name);
  exit(1);
}

// The calls of both libraries that a rank makes.
struct Calls {
  Calls(void* cuda, void* nccl) {
    Find(cuda, "cudaSetDevice", set_device);
    Find(cuda, "cudaMalloc", allocate);
    Find(cuda, "cudaMemcpy", copy);
    Find(cuda, "cudaFree", free);
    Find(cuda, "cudaEventCreateWithFlags", create_event);
    Find(cuda, "cudaEventRecord", record_event);
    Find(cuda, "cudaEventQuery", query_event);
    Find(nccl, "ncclGetUniqueId", get_unique_id);
    Find(nccl, "ncclCommInitRank", init);
    Find(nccl, "ncclCommDestroy", destroy);
    Find(nccl, "ncclCommAbort", abort);
    Find(nccl, "ncclCommGetAsyncError", get_async_error);
    Find(nccl, "ncclGetErrorString", error_string);
    Find(nccl, "ncclGetLastError", last_error);
    Find(nccl, "ncclAllReduce", all_reduce);
    Find(nccl, "ncclAllGather", all_gather);
    Find(nccl, "ncclReduceScatter", reduce_scatter);
    Find(nccl, "ncclBroadcast", broadcast);
    Find(nccl, "ncclReduce", reduce);
    Find(nccl, "ncclSend", send);
    Find(nccl, "ncclRecv", recv);
    Find(nccl, "ncclGroupStart", group_start);
    Find(nccl, "ncclGroupEnd", group_end);
  }
  int (*set_device)(int);
  int (*allocate)(void**, size_t);
  int (*copy)(void*, const void*, size_t, int);
  int (*free)(void*);
  int (*create_event)(void**, unsigned);
  int (*record_event)(void*, void*);
  int (*query_event)(void*);
  int (*get_unique_id)(UniqueId*);
  int (*init)(void**, int, UniqueId, int);
  int (*destroy)(void*);
  int (*abort)(void*);
  int (*get_async_error)(void*, int*);
  const char* (*error_string)(int);
  const char* (*last_error)(void*);
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*);
  int (*all_gather)(const void*, void*, size_t, int, void*, void*);
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, void*);
  int (*broadcast)(const void*, void*, size_t, int, int, void*, void*);
  int (*reduce)(const void*, void*, size_t, int, int, int, void*, void*);
  int (*send)(const void*, size_t, int, int, void*, void*);
  int (*recv)(void*, size_t, int, int, void*, void*);
  int (*group_start)();
  int (*group_end)();
};

class Rank {
 public:
  Rank(const Calls& calls, int rank, int ranks, const UniqueId& id, size_t most)
      : calls_(calls), rank_(rank), ranks_(ranks) {
    Check(calls.set_device(0), "cudaSetDevice");
    size_t bytes = most * static_cast<size_t>(ranks) * sizeof(float);
    Check(calls.allocate(&input_, bytes), "cudaMalloc");
    Check(calls.allocate(&output_, bytes), "cudaMalloc");
    Check(calls.create_event(&event_, kNoTiming), "cudaEventCreateWithFlags");
    CheckNccl(calls.init(&comm_, ranks, id, rank), "ncclCommInitRank");
  }
  ~Rank() {
    CheckNccl(calls_.destroy(comm_), "ncclCommDestroy");
    for (void* memory : {input_, output_}) Check(calls_.free(memory), "cudaFree");
  }

  void RunAll(size_t count) {
    auto ranks = static_cast<size_t>(ranks_);
    int next = (rank_ + 1) % ranks_, previous = (rank_ + ranks_ - 1) % ranks_, root = ranks_ - 1;
    float all = static_cast<float>(ranks_), sum = all * (all - 1) / 2;

    Give(count);
    CheckNccl(calls_.all_reduce(input_, output_, count, kFloat, kSum, comm_, nullptr),
              "ncclAllReduce");
    Expect("all-reduce", count, [&](size_t i) { return all * Base(i) + sum; });

    Give(count);
    CheckNccl(calls_.all_gather(input_, output_, count, kFloat, comm_, nullptr), "ncclAllGather");
    Expect("all-gather", count * ranks,
           [&](size_t i) { return Base(i % count) + static_cast<float>(i / count); });

    Give(count * ranks);
    CheckNccl(calls_.reduce_scatter(input_, output_, count, kFloat, kSum, comm_, nullptr),
              "ncclReduceScatter");
    Expect("reduce-scatter", count,
           [&](size_t i) { return all * Base(static_cast<size_t>(rank_) * count + i) + sum; });

    Give(count);
    CheckNccl(calls_.broadcast(input_, output_, count, kFloat, root, comm_, nullptr),
              "ncclBroadcast");
    Expect("broadcast", count, [&](size_t i) { return Base(i) + static_cast<float>(root); });

    Give(count);
    CheckNccl(calls_.group_start(), "ncclGroupStart");
    CheckNccl(calls_.send(input_, count * sizeof(float), kInt8, next, comm_, nullptr), "ncclSend");
    CheckNccl(calls_.recv(output_, count * sizeof(float), kInt8, previous, comm_, nullptr),
              "ncclRecv");
    CheckNccl(calls_.group_end(), "ncclGroupEnd");
    Expect("send and receive", count,
           [&](size_t i) { return Base(i) + static_cast<float>(previous); });
  }

  // The collectives that a tuner is asked about. Returns before they are done.
  void StartAll(size_t count) {
    const size_t part = count / static_cast<size_t>(ranks_);
    CheckNccl(calls_.all_reduce(input_, output_, count, kFloat, kSum, comm_, nullptr),
              "ncclAllReduce");
    CheckNccl(calls_.all_gather(input_, output_, part, kFloat, comm_, nullptr), "ncclAllGather");
    CheckNccl(calls_.reduce_scatter(input_, output_, part, kFloat, kSum, comm_, nullptr),
              "ncclReduceScatter");
    CheckNccl(calls_.broadcast(input_, output_, count, kFloat, 0, comm_, nullptr), "ncclBroadcast");
    CheckNccl(calls_.reduce(input_, output_, count, kFloat, kSum, 0, comm_, nullptr), "ncclReduce");
  }

 private:
  // Small whole numbers, whose sums are exact in any order.
  static float Base(size_t i) { return static_cast<float>(i % 1009); }

  void Give(size_t count) {
    values_.resize(count);
    for (size_t i = 0; i < count; ++i) values_[i] = Base(i) + static_cast<float>(rank_);
    Check(calls_.copy(input_, values_.data(), count * sizeof(float), kToDevice), "cudaMemcpy");
  }

  template <typename Expected>
  void Expect(const char* what, size_t count, Expected&& expected) {
    AwaitStream();
    values_.assign(count, -1);
    Check(calls_.copy(values_.data(), output_, count * sizeof(float), kToHost), "cudaMemcpy");
    for (size_t i = 0; i < count; ++i) {
      if (values_[i] == expected(i)) continue;
      fprintf(stderr, "rank %d: %s of %zu: value %zu is %f, not %f\n", rank_, what, count, i,
              static_cast<double>(values_[i]), static_cast<double>(expected(i)));
      exit(1);
    }
  }

  // As frameworks wait: NCCL says by itself when a communicator is broken, and is then to abort it.
  void AwaitStream() {
    Check(calls_.record_event(event_, nullptr), "cudaEventRecord");
    for (int result; (result = calls_.query_event(event_)) != 0;) {
      if (result != kNotReady) Check(result, "cudaEventQuery");
      int error = 0;
      CheckNccl(calls_.get_async_error(comm_, &error), "ncclCommGetAsyncError");
      if (error == 0) {
        usleep(100);
        continue;
      }
      fprintf(stderr, "rank %d: NCCL reports: %s: %s\n", rank_, calls_.error_string(error),
              calls_.last_error(comm_));
      CheckNccl(calls_.abort(comm_), "ncclCommAbort");
      exit(kReportedBroken);
    }
  }

  void Check(int result, const char* call) const {
    if (result == 0) return;
    fprintf(stderr, "rank %d: %s: error %d\n", rank_, call, result);
    exit(1);
  }
  void CheckNccl(int result, const char* call) const {
    if (result == 0) return;
    fprintf(stderr, "rank %d: %s: %s: %s\n", rank_, call, calls_.error_string(result),
            calls_.last_error(nullptr));
    exit(1);
  }

  const Calls& calls_;
  const int rank_, ranks_;
  void *comm_ = nullptr, *event_ = nullptr, *input_ = nullptr, *output_ = nullptr;
  std::vector<float> values_;
};

// Rank 0 makes the id and renames it into place; the others wait for it, no longer than a rank may.
UniqueId ShareId(const Calls& calls, int rank, const std::string& path) {
  UniqueId id{};
  if (rank == 0) {
    if (calls.get_unique_id(&id) != 0) exit(1);
    std::ofstream(path + ".new", std::ios::binary).write(id.bytes, sizeof(id.bytes));
    if (rename((path + ".new").c_str(), path.c_str()) != 0) exit(1);
  } else {
    while (access(path.c_str(), R_OK) != 0) usleep(1000);
    std::ifstream(path, std::ios::binary).read(id.bytes, sizeof(id.bytes));
  }
  return id;
}

// The arguments of a rank, as a job has them.
struct RankArguments {
  int rank, ranks, rounds, lives, dies_after;
  bool scripted_gpu, only_chooses;
  std::string id_file;
  std::vector<size_t> counts;

  std::vector<std::string> Words() const {
    return {absl::StrCat(rank),        absl::StrCat(ranks),
            absl::StrCat(rounds),      absl::StrCat(lives),
            absl::StrCat(dies_after),  scripted_gpu ? "1" : "0",
            only_chooses ? "1" : "0",  id_file,
            absl::StrJoin(counts, ",")};
  }
  static constexpr int kWords = 9;
  static RankArguments Of(char** words) {
    RankArguments out = {atoi(words[0]),      atoi(words[1]), atoi(words[2]),
                         atoi(words[3]),      atoi(words[4]), atoi(words[5]) != 0,
                         atoi(words[6]) != 0, words[7],       {}};
    for (absl::string_view count : absl::StrSplit(words[8], ',', absl::SkipEmpty())) {
      out.counts.push_back(strtoull(std::string(count).c_str(), nullptr, 10));
    }
    return out;
  }
};

// Waits until every rank has come here, no longer than a rank may live: of one that ends, the
// connections do, and the calls that others still make fail.
void MeetTheOthers(const RankArguments& job) {
  const auto file = [&job](int rank) { return absl::StrCat(job.id_file, ".came", rank); };
  if (!std::ofstream(file(job.rank))) exit(1);
  for (int rank = 0; rank < job.ranks; ++rank) {
    while (access(file(rank).c_str(), F_OK) != 0) usleep(1000);
  }
}

void Live(const Calls& calls, const RankArguments& job, int life) {
  size_t most = job.counts.empty() ? 0 : *std::max_element(job.counts.begin(), job.counts.end());
  if (job.only_chooses) most /= static_cast<size_t>(job.ranks);  // they are of the whole buffer
  Rank self(calls, job.rank, job.ranks, ShareId(calls, job.rank, absl::StrCat(job.id_file, life)),
            most);
  if (job.only_chooses) {
    for (size_t count : job.counts) self.StartAll(count);
    MeetTheOthers(job);
    fflush(nullptr);
    _exit(0);  // NCCL would wait for bytes that no kernel moves
  }
  for (int round = 1; round <= job.rounds; ++round) {
    for (size_t count : job.counts) self.RunAll(count);
    printf("rank %d: round %d of %d is right\n", job.rank, round, job.rounds);
    fflush(stdout);
    if (round == job.dies_after && job.rank == job.ranks - 1) raise(SIGKILL);
  }
}

int RunRank(const RankArguments& job) {
  void *cuda = LoadCuda(job.scripted_gpu), *nccl = LoadNccl();
  if (cuda == nullptr || nccl == nullptr) return 1;
  if (job.scripted_gpu) {
    const char* (*attach)(void*);
    Find(cuda, "WeftAttachScriptedGpu", attach);
    if (const char* error = attach(nccl)) {
      fprintf(stderr, "%s\n", error);
      return 1;
    }
  }
  Calls calls(cuda, nccl);
  for (int life = 0; life < job.lives; ++life) Live(calls, job, life);
  return 0;
}

pid_t StartRank(const NcclJob& job, const std::string& folder, int rank, unsigned limit_seconds) {
  pid_t child = fork();
  if (child != 0) return child;
  for (auto [name, value] : {std::pair{"NCCL_MNNVL_ENABLE", "0"},
                             {"NCCL_SOCKET_IFNAME", "lo"},
                             {"NCCL_DEBUG", "INFO"},
                             {"NCCL_DEBUG_SUBSYS", "INIT,NET,ENV,TUNING"},
                             {"NCCL_MAX_NCHANNELS", "2"},
                             {"NCCL_RAS_ENABLE", "0"},
                             {"NCCL_NET_PLUGIN_REF_COUNT", "1"}}) {
    setenv(name, value, 1);
  }
  if (job.only_chooses) setenv("WEFT_SCRIPTED_GPU_SKIPS_KERNELS", "1", 1);
  for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 1);
  setenv("NCCL_HOSTID", absl::StrCat("weft-test-", rank).c_str(), 1);
  setenv("NCCL_DEBUG_FILE", absl::StrCat(folder, "/log", rank).c_str(), 1);
  // A program of its own for each rank: CUDA does not survive a fork.
  RankArguments own = {rank,           job.ranks,        job.rounds,       job.lives,
                       job.dies_after, job.scripted_gpu, job.only_chooses, folder + "/id",
                       job.counts};
  std::vector<std::string> words = own.Words();
  words.insert(words.begin(), {"nccl_rank", kRankFlag});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  alarm(limit_seconds);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

void* LoadNccl() {
  return LoadFirst("WEFT_TEST_NCCL", {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"});
}

void* LoadCuda(bool scripted) {
  if (scripted) return LoadFirst("WEFT_TEST_SCRIPTED_GPU", {WEFT_SCRIPTED_GPU});
  return LoadFirst("WEFT_TEST_CUDART", {"libcudart.so.13", "libcudart.so.12"});
}

int NcclVersion(void* nccl) {
  int (*get_version)(int*);
  Find(nccl, "ncclGetVersion", get_version);
  int version = 0;
  return get_version(&version) == 0 ? version : 0;
}

std::vector<NcclRankEnd> RunNcclJob(const NcclJob& job, unsigned limit_seconds) {
  ScratchFolder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < job.ranks; ++rank) {
    children.push_back(StartRank(job, folder.path(), rank, limit_seconds));
  }
  std::vector<NcclRankEnd> ends;
  for (int rank = 0; rank < job.ranks; ++rank) {
    int status = 0;
    NcclRankEnd& end = ends.emplace_back();
    if (waitpid(children[static_cast<size_t>(rank)], &status, 0) < 0) continue;
    end.succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    end.status = WIFEXITED(status) ? absl::StrCat("exited with ", WEXITSTATUS(status))
                                   : absl::StrCat("killed by signal ", WTERMSIG(status));
    end.log = ReadFile(absl::StrCat(folder.path(), "/log", rank));
  }
  return ends;
}

}  // namespace weft

// The main of every test that runs such jobs: it is one of their ranks, or the tests.
int main(int argc, char** argv) {
  using weft::RankArguments;
  if (argc >= 2 && strcmp(argv[1], weft::kRankFlag) == 0) {
    if (argc == RankArguments::kWords + 2) return weft::RunRank(RankArguments::Of(argv + 2));
    fprintf(stderr, "%s takes %d words, not %d\n", weft::kRankFlag, RankArguments::kWords,
            argc - 2);
    return 2;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
