// Times MPI's collectives: mpi_peer REPEATS SECONDS SIZE...
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kMin = 2, kMax = 2000, kTrial = 3, kOperations = 5 };
static const char* const kNames[kOperations] = {"all_reduce", "all_gather", "reduce_scatter",
                                                "broadcast", "all_to_all"};

static float *whole, *part, *other;
static int ranks, rank;

static void Call(int operation, int count) {
  switch (operation) {
    case 0:
      MPI_Allreduce(MPI_IN_PLACE, whole, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    case 1:
      MPI_Allgather(part, count / ranks, MPI_FLOAT, whole, count / ranks, MPI_FLOAT,
                    MPI_COMM_WORLD);
      return;
    case 2:
      MPI_Reduce_scatter_block(whole, part, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    case 3:
      MPI_Bcast(whole, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      return;
    default:
      MPI_Alltoall(whole, count / ranks, MPI_FLOAT, other, count / ranks, MPI_FLOAT,
                   MPI_COMM_WORLD);
  }
}

// Seconds of one call, of the slowest rank.
static double Time(int operation, int count, int k) {
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < k; ++i) Call(operation, count);
  double mine = (MPI_Wtime() - start) / k, slowest;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int repeats = atoi(argv[1]);
  double seconds = atof(argv[2]);
  for (int at = 3; at < argc; ++at) {
    size_t size = strtoull(argv[at], NULL, 10);
    int count = (int)(size / sizeof(float));
    whole = malloc(size);
    part = malloc(size / ranks);
    other = malloc(size);
    for (int i = 0; i < count; ++i) whole[i] = other[i] = 1;
    for (int i = 0; i < count / ranks; ++i) part[i] = 1;
    for (int operation = 0; operation < kOperations; ++operation) {
      if (count < ranks && operation != 0 && operation != 3) continue;  // parts would be empty
      Time(operation, count, kTrial);
      double k = seconds / Time(operation, count, kTrial);
      k = k < kMin ? kMin : k > kMax ? kMax : k;
      if (rank == 0)
        printf("{\"op\": \"%s\", \"size\": %zu, \"repeats_us\": [", kNames[operation], size);
      for (int i = 0; i < repeats; ++i) {
        double time = Time(operation, count, (int)k);
        if (rank == 0) printf("%s%.3f", i ? ", " : "", time * 1e6);
      }
      if (rank == 0) printf("]}\n");
    }
    free(whole);
    free(part);
    free(other);
  }
  MPI_Finalize();
  return 0;
}
