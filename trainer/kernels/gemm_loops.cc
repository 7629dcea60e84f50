// The loops of gemm.h. Compiled once for each instruction set, as decode_loops.cc is.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <type_traits>

#include "trainer/kernels/gemm.h"
#include "trainer/kernels/gemm_tile.h"
#include "trainer/kernels/scratch_memory.h"

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

// Steps of a pass: as many as keep the panels of a tile near (kTileColumns * 4 bytes a step in B,
// half of the first-level cache; A's rows stream from the second), and the result is not read and
// written too often.
constexpr int64_t kPassSteps = 384;
// Rows that a thread takes at once: a block of A in half of a second-level cache.
constexpr int64_t kBlockRows = kTileRows * (kLanes == 16 ? 12 : 16);
// Rows and columns that are packed at once.
constexpr int64_t kPackedRows = kBlockRows * 12;
constexpr int64_t kPackedColumns = 3072;

template <typename T, typename C>
void Multiply(const GemmProblem<T, C>& p) {
  static thread_local ScratchMemory a_memory, b_memory, sums_memory;
  const int64_t steps = Quotient(p.k, kDepth<T>);
  const int64_t passes = std::max<int64_t>(1, Quotient(steps, kPassSteps));
  const int64_t pass_steps = RoundUp(Quotient(steps, passes), 4);
  const int64_t row_panels = Quotient(std::min(p.m, kPackedRows), kTileRows);
  const int64_t column_panels = Quotient(std::min(p.n, kPackedColumns), kTileColumns);
  uint32_t* const a = a_memory.Take<uint32_t>(row_panels * kTileRows * pass_steps);
  uint32_t* const b = b_memory.Take<uint32_t>(column_panels * kTileColumns * pass_steps);
  // Sums of passes but the last, where the result itself cannot hold them.
  const bool apart = passes > 1 && !std::is_same_v<C, float>;
  float* const sums =
      apart ? sums_memory.Take<float>(p.m * std::min(p.n, kPackedColumns)) : nullptr;
  const int threads = omp_get_max_threads();

#pragma omp parallel num_threads(threads) if (p.m * p.n * p.k > (1 << 18))
  for (int64_t jc = 0; jc < p.n; jc += kPackedColumns) {
    const int64_t columns = std::min(kPackedColumns, p.n - jc);
    const int64_t b_panels = Quotient(columns, kTileColumns);
    const GemmOperand<T> right{p.b.transposed ? p.b.data + jc * p.b.stride : p.b.data + jc,
                               p.b.stride, p.b.transposed};
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t first = pass * pass_steps * kDepth<T>;
      const int64_t depth = std::min(pass_steps * kDepth<T>, p.k - first);
      const int64_t here = Quotient(depth, kDepth<T>);
#pragma omp for schedule(dynamic, 4)
      for (int64_t panel = 0; panel < b_panels; ++panel) {
        PackPanel<T, kTileColumns>(right, right.transposed, panel, columns, first, depth,
                                   b + panel * kTileColumns * here);
      }
      for (int64_t ic = 0; ic < p.m; ic += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, p.m - ic);
        const int64_t a_panels = Quotient(rows, kTileRows);
        const GemmOperand<T> left{p.a.transposed ? p.a.data + ic : p.a.data + ic * p.a.stride,
                                  p.a.stride, p.a.transposed};
#pragma omp for schedule(dynamic, 4)
        for (int64_t panel = 0; panel < a_panels; ++panel) {
          PackPanel<T, kTileRows>(left, !left.transposed, panel, rows, first, depth,
                                  a + panel * kTileRows * here);
        }
        // Tasks of a block of rows and a part of the columns: several for each thread.
        const int64_t block = kBlockRows / kTileRows;
        const int64_t blocks = Quotient(a_panels, block);
        const int64_t parts =
            threads == 1 ? 1 : std::min(b_panels, Quotient(int64_t{4} * threads, blocks));
        const int64_t part = Quotient(b_panels, parts);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < blocks * parts; ++task) {
          const int64_t i_begin = task / parts * block;
          const int64_t i_end = std::min(i_begin + block, a_panels);
          const int64_t j_begin = task % parts * part;
          const int64_t j_end = std::min(j_begin + part, b_panels);
          for (int64_t j = j_begin; j < j_end; ++j) {
            const int64_t column = j * kTileColumns;
            for (int64_t i = i_begin; i < i_end; ++i) {
              const int64_t row = i * kTileRows;
              Tile tile;
              Sum<T>(here, a + row * here, kTileRows, b + column * here, tile);
              const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - row);
              const int64_t tile_columns = std::min<int64_t>(kTileColumns, columns - column);
              const bool is_first = pass == 0, is_last = pass == passes - 1;
              float* const kept = apart ? sums + (ic + row) * columns + column : nullptr;
              if (apart && !is_last) {
                Write(tile, tile_rows, tile_columns,
                      Place<float, T>{.c = kept, .stride = columns, .add = !is_first});
                continue;
              }
              const bool brings_bias = p.bias != nullptr && (apart ? is_last : is_first);
              Write(tile, tile_rows, tile_columns,
                    Place<C, T>{.c = p.c + (ic + row) * p.stride + jc + column,
                                .stride = p.stride,
                                .add = p.add || (!apart && !is_first),
                                .bias = brings_bias ? p.bias + jc + column : nullptr,
                                .sums = kept,
                                .sums_stride = columns});
            }
          }
        }
      }
    }
  }
}

// A tile's sums over one step again and again, whose operands stay in the first-level cache.
template <typename T>
double Peak(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 20000;
  constexpr double kFlops = 2.0 * kSteps * kTileRows * kTileColumns * kDepth<T>;
  const uint32_t a[kTileRows] = {}, b[kTileColumns] = {};
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (Clock::time_point last = start; last - start < std::chrono::duration<double>(seconds);) {
    Tile tile;
    Sum<T, false>(kSteps, a, 0, b, tile);
    asm volatile("" : : "r"(&tile), "r"(a), "r"(b) : "memory");
    const Clock::time_point now = Clock::now();
    best = std::max(best, kFlops / std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return best;
}

double RegisterPeak(bool bf16, double seconds) {
  return bf16 ? Peak<Bf16>(seconds) : Peak<float>(seconds);
}

}  // namespace

GemmTable Gemm() {
  GemmTable table;
  table.f32 = &Multiply<float, float>;
  table.bf16 = &Multiply<Bf16, Bf16>;
  table.bf16_to_fp32 = &Multiply<Bf16, float>;
  table.has_bf16 = kHasPairs;
  table.register_peak = &RegisterPeak;
  return table;
}

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
