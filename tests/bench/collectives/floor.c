// The least that a collective on host memory can take: floor REPEATS SECONDS SIZE..., with the
// number of ranks in WEFT_FLOOR_RANKS.
//
// Threads, one a core, read every byte of every rank's input once and write every byte of every
// rank's output once, past the cache where buffers are larger than it. Where that takes less time
// than a store of one core takes to reach a load of another, the floor is that.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { kMin = 2, kMax = 2000, kTrial = 3, kOperations = 5, kThreadsMax = 256, kStretch = 20 };
static const char* const kNames[kOperations] = {"all_reduce", "all_gather", "reduce_scatter",
                                                "broadcast", "all_to_all"};
// Larger outputs are written past the cache.
static const size_t kCacheBytes = (size_t)8 << 20;

static const double kMoment = 1e-3;  // seconds

static int threads, ranks;
static char *input, *output;
static size_t reads, writes;
static pthread_barrier_t begin, end;
static atomic_int stop;
static atomic_uint_fast64_t sink;

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static uint64_t Read(const char* from, size_t bytes) {
  uint64_t sums[8] = {0}, sum = 0;
  size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    uint64_t words[8];
    memcpy(words, from + i, 64);
    for (int w = 0; w < 8; ++w) sums[w] += words[w];
  }
  for (; i < bytes; ++i) sum += (unsigned char)from[i];
  for (int w = 0; w < 8; ++w) sum += sums[w];
  return sum;
}

static void Write(char* to, size_t bytes, int past_cache) {
#if defined(__x86_64__)
  if (past_cache && ((uintptr_t)to & 15) == 0) {
    const __m128i value = _mm_set1_epi8(1);
    size_t i = 0;
    for (; i + 16 <= bytes; i += 16) _mm_stream_si128((__m128i*)(to + i), value);
    memset(to + i, 1, bytes - i);
    _mm_sfence();
    return;
  }
#endif
  (void)past_cache;
  memset(to, 1, bytes);
}

// Thread t's part, on whole lines of the cache.
static void Part(size_t bytes, int t, size_t* first, size_t* length) {
  size_t lines = (bytes + 63) / 64, each = (lines + (size_t)threads - 1) / (size_t)threads;
  size_t from = each * (size_t)t * 64, to = from + each * 64;
  *first = from < bytes ? from : bytes;
  *length = (to < bytes ? to : bytes) - *first;
}

static void Pass(int t) {
  size_t first, length;
  Part(reads, t, &first, &length);
  atomic_fetch_add_explicit(&sink, Read(input + first, length), memory_order_relaxed);
  Part(writes, t, &first, &length);
  Write(output + first, length, writes > kCacheBytes);
}

static void* Work(void* argument) {
  const int t = (int)(intptr_t)argument;
  for (;;) {
    pthread_barrier_wait(&begin);
    if (atomic_load(&stop)) return NULL;
    Pass(t);
    pthread_barrier_wait(&end);
  }
}

// Seconds of one pass of k. Small buffers, whose passes are shorter than a barrier, are passed over
// by this thread alone, as fast as all of them would be.
static double Streaming(int k) {
  if (reads + writes < ((size_t)1 << 20)) {
    double start = Now();
    for (int i = 0; i < k; ++i) {
      atomic_fetch_add_explicit(&sink, Read(input, reads), memory_order_relaxed);
      Write(output, writes, 0);
    }
    return (Now() - start) / k / threads;
  }
  double start = Now();
  for (int i = 0; i < k; ++i) {
    pthread_barrier_wait(&begin);
    Pass(0);
    pthread_barrier_wait(&end);
  }
  return (Now() - start) / k;
}

// ---- A store of one core to a load of another

static _Alignas(128) atomic_int ball;

static void* Answer(void* argument) {
  (void)argument;
  for (int i = 1;; i += 2) {
    int now;
    while ((now = atomic_load_explicit(&ball, memory_order_acquire)) != i) {
      if (now < 0) return NULL;
    }
    atomic_store_explicit(&ball, i + 1, memory_order_release);
  }
}

// Of the fastest of many stretches, as many as a moment allows: a thread that lost its core for a
// while is no limit.
static double HandOver(void) {
  if (threads < 2) return 0;
  pthread_t other;
  atomic_store(&ball, 0);
  pthread_create(&other, NULL, Answer, NULL);
  double least = 1e9, begun = Now(), start = begun;
  for (int i = 0; start - begun < kMoment; i += 2) {
    atomic_store_explicit(&ball, i + 1, memory_order_release);
    while (atomic_load_explicit(&ball, memory_order_acquire) != i + 2) {
    }
    if ((i + 2) % (2 * kStretch) != 0) continue;
    double now = Now(), time = (now - start) / (2 * kStretch);
    if (time < least) least = time;
    start = now;
  }
  atomic_store(&ball, -1);
  pthread_join(other, NULL);
  return least;
}

// Bytes that all ranks read and write together. What a root or a rank has in place already is not
// written again.
static void Amounts(int operation, size_t size) {
  size_t n = (size_t)ranks;
  switch (operation) {
    case 0:
      reads = writes = n * size;
      return;
    case 1:
      reads = size, writes = n * size;
      return;
    case 2:
      reads = n * size, writes = size;
      return;
    case 3:
      reads = size, writes = (n - 1) * size;
      return;
    default:
      reads = writes = n * size;
  }
}

int main(int argc, char** argv) {
  const char* count = getenv("WEFT_FLOOR_RANKS");
  if (argc < 4 || count == NULL || (ranks = atoi(count)) < 2) {
    fprintf(stderr, "usage: WEFT_FLOOR_RANKS=N floor REPEATS SECONDS SIZE...\n");
    return 2;
  }
  cpu_set_t allowed;
  threads = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  if (threads > kThreadsMax) threads = kThreadsMax;
  const int repeats = atoi(argv[1]);
  const double seconds = atof(argv[2]);
  size_t largest = 0;
  for (int at = 3; at < argc; ++at) {
    size_t size = strtoull(argv[at], NULL, 10);
    if (size > largest) largest = size;
  }
  input = aligned_alloc(4096, (largest * (size_t)ranks + 4095) / 4096 * 4096);
  output = aligned_alloc(4096, (largest * (size_t)ranks + 4095) / 4096 * 4096);
  if (input == NULL || output == NULL) {
    fprintf(stderr, "floor: no memory for %zu bytes of %d ranks\n", largest, ranks);
    return 1;
  }
  memset(input, 1, largest * (size_t)ranks);
  memset(output, 1, largest * (size_t)ranks);
  pthread_barrier_init(&begin, NULL, (unsigned)threads);
  pthread_barrier_init(&end, NULL, (unsigned)threads);
  pthread_t others[kThreadsMax];
  for (int t = 1; t < threads; ++t) {
    pthread_create(&others[t], NULL, Work, (void*)(intptr_t)t);
  }
  for (int at = 3; at < argc; ++at) {
    size_t size = strtoull(argv[at], NULL, 10);
    for (int operation = 0; operation < kOperations; ++operation) {
      Amounts(operation, size);
      Streaming(kTrial);
      double k = seconds / (Streaming(kTrial) + 1e-9);
      k = k < kMin ? kMin : k > kMax ? kMax : k;
      printf("{\"op\": \"%s\", \"size\": %zu, \"repeats_us\": [", kNames[operation], size);
      for (int i = 0; i < repeats; ++i) {
        double streaming = Streaming((int)k), hand_over = HandOver();
        printf("%s%.4f", i ? ", " : "", (streaming > hand_over ? streaming : hand_over) * 1e6);
      }
      printf("]}\n");
    }
  }
  atomic_store(&stop, 1);
  pthread_barrier_wait(&begin);
  for (int t = 1; t < threads; ++t) pthread_join(others[t], NULL);
  return 0;
}
