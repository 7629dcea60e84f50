// Times oneCCL's collectives: oneccl_peer REPEATS SECONDS SIZE..., under its MPI's launcher.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <oneapi/ccl.hpp>
#include <vector>

namespace {

constexpr int kMin = 2, kMax = 2000, kTrial = 3;
constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                  "all_to_all"};

struct Job {
  ccl::communicator& communicator;
  int ranks;
  std::vector<float> whole, part, other;

  void Call(int operation) {
    const size_t count = whole.size(), each = part.size();
    switch (operation) {
      case 0:
        ccl::allreduce(whole.data(), whole.data(), count, ccl::reduction::sum, communicator).wait();
        return;
      case 1:
        ccl::allgatherv(part.data(), each, whole.data(), std::vector<size_t>(ranks, each),
                        communicator)
            .wait();
        return;
      case 2:
        ccl::reduce_scatter(whole.data(), part.data(), each, ccl::reduction::sum, communicator)
            .wait();
        return;
      case 3:
        ccl::broadcast(whole.data(), count, 0, communicator).wait();
        return;
      default:
        ccl::alltoall(whole.data(), other.data(), each, communicator).wait();
    }
  }
  // Seconds of one call, of the slowest rank.
  double Time(int operation, int k) {
    ccl::barrier(communicator);
    ccl::barrier(communicator);
    const double start = MPI_Wtime();
    for (int i = 0; i < k; ++i) Call(operation);
    double mine = (MPI_Wtime() - start) / k, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
  }
};

}  // namespace

int main(int argc, char** argv) {
  ccl::init();
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  {
    auto communicator = ccl::create_communicator(ranks, rank, store);
    const int repeats = std::atoi(argv[1]);
    const double seconds = std::atof(argv[2]);
    for (int at = 3; at < argc; ++at) {
      const size_t size = std::strtoull(argv[at], nullptr, 10), count = size / sizeof(float);
      Job job{communicator, ranks, std::vector<float>(count, 1),
              std::vector<float>(count / static_cast<size_t>(ranks), 1),
              std::vector<float>(count, 1)};
      for (int operation = 0; operation < 5; ++operation) {
        if (job.part.empty() && operation != 0 && operation != 3) continue;
        job.Time(operation, kTrial);
        const double wanted = seconds / job.Time(operation, kTrial);
        const int k = static_cast<int>(std::clamp<double>(wanted, kMin, kMax));
        if (rank == 0) {
          std::printf("{\"op\": \"%s\", \"size\": %zu, \"repeats_us\": [", kNames[operation], size);
        }
        for (int i = 0; i < repeats; ++i) {
          const double time = job.Time(operation, k);
          if (rank == 0) std::printf("%s%.3f", i > 0 ? ", " : "", time * 1e6);
        }
        if (rank == 0) std::printf("]}\n");
      }
    }
  }
  MPI_Finalize();
  return 0;
}
