// The loops of gemm.h. Compiled once for each instruction set, as decode_loops.cc is.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <type_traits>

#include "trainer/kernels/activation.h"
#include "trainer/kernels/gemm.h"
#include "trainer/kernels/gemm_tile.h"
#include "trainer/kernels/scratch_memory.h"
#if defined(WEFT_KERNELS_AMX)
#include "trainer/kernels/gemm_amx.h"
#else
#include "trainer/kernels/gemm_vectors.h"
#endif

namespace weft::train::kernels::WEFT_KERNEL_SET {
namespace {

// Steps of a pass: as many as keep the panels of a tile near (kTileColumns * 4 bytes a step in B,
// half of the first-level cache; A's rows stream from the second), and the result is not read and
// written too often.
constexpr int64_t kPassSteps = kHasAmx ? 192 : 384;
// Rows that a thread takes at once: a block of A in half of a second-level cache.
constexpr int64_t kBlockRows = kTileRows * (kLanes == 16 ? 12 : 16);
// Rows and columns that are packed at once.
constexpr int64_t kPackedRows = kBlockRows * 12;
constexpr int64_t kPackedColumns = 3072;

// Rows and columns of the result.
struct Block {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

template <typename Act>
void ForEach(int64_t begin, int64_t end, const Act& act) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) act(i);
}

// The epilogue of a block of the result, whose sums are complete. With kSwiglu all gates are
// complete before any up is.
template <typename T, typename C>
void Finish(const GemmProblem<T, C>& p, const Block& block) {
  const int64_t half = p.n / 2;
  for (int64_t row = block.row; row < block.row + block.rows; ++row) {
    C* const c = p.c + row * p.stride;
    const C* const other = p.other + row * p.other_stride;
    C* const out = p.out + row * p.out_stride;
    const int64_t begin = block.column, end = block.column + block.columns;
    switch (p.epilogue) {
      case GemmEpilogue::kNone:
        break;
      case GemmEpilogue::kAddOther:
        ForEach(begin, end, [=](int64_t i) { Store(Load(c[i]) + Load(other[i]), c[i]); });
        break;
      case GemmEpilogue::kGelu:
        ForEach(begin, end, [=](int64_t i) { Store(Gelu(Load(c[i])), out[i]); });
        break;
      case GemmEpilogue::kSwiglu:
        if (begin < half) break;
        ForEach(begin, end,
                [=](int64_t i) { Store(Swiglu(Load(c[i - half]), Load(c[i])), out[i - half]); });
        break;
      case GemmEpilogue::kGeluGradient:
        ForEach(begin, end,
                [=](int64_t i) { Store(Load(c[i]) * GeluSlope(Load(other[i])), c[i]); });
        break;
      case GemmEpilogue::kSwigluGradient:
        ForEach(begin, end, [=, n = p.n](int64_t i) {
          const GateAndUp gradient = SwigluGradient(Load(c[i]), Load(other[i]), Load(other[n + i]));
          Store(gradient.gate, c[i]);
          Store(gradient.up, c[n + i]);
        });
        break;
    }
  }
}

// Panels of both operands, a part of the common dimension, and where their product goes.
struct Pass {
  const uint32_t *a = nullptr, *b = nullptr;
  int64_t steps = 0;
  Block block;
  bool is_first = true, is_last = true;  // of the common dimension
  float* sums = nullptr;                 // of all rows: of earlier passes; null: these are in c
};

// Panels of rows [i_begin, i_end) times panels of columns [j_begin, j_end).
struct Task {
  int64_t i_begin = 0, i_end = 0, j_begin = 0, j_end = 0;
};

template <typename T, typename C>
[[gnu::always_inline]] inline void MultiplyTile(const GemmProblem<T, C>& p, const Pass& pass,
                                                int64_t i, int64_t j) {
  const Block& block = pass.block;
  const int64_t row = i * kTileRows, column = j * kTileColumns;
  const uint32_t *const a = pass.a + row * pass.steps, *const b = pass.b + column * pass.steps;
  const int64_t rows = std::min<int64_t>(kTileRows, block.rows - row);
  const int64_t columns = std::min<int64_t>(kTileColumns, block.columns - column);
  const bool apart = pass.sums != nullptr;
  float* const kept = apart ? pass.sums + (block.row + row) * block.columns + column : nullptr;
  C* const c = p.c + (block.row + row) * p.stride + block.column + column;
#if defined(WEFT_KERNELS_AMX)
  // Sums that are in memory as floats begin and end there.
  const int64_t units = pass.steps / kUnitSteps;
  if (apart && !pass.is_last) {
    return SumInPlace(units, a, b, !pass.is_first, rows, columns, {kept, block.columns});
  }
  if constexpr (std::is_same_v<C, float>) {
    if (p.bias == nullptr) {
      return SumInPlace(units, a, b, p.add || !pass.is_first, rows, columns, {c, p.stride});
    }
  }
#endif
  Tile tile;
  SumPanels<T>(pass.steps, a, b, tile);
  if (apart && !pass.is_last) {
    return Write(tile, rows, columns,
                 Place<float, T>{.c = kept, .stride = block.columns, .add = !pass.is_first});
  }
  const bool brings_bias = p.bias != nullptr && (apart ? pass.is_last : pass.is_first);
  Write(tile, rows, columns,
        Place<C, T>{.c = c,
                    .stride = p.stride,
                    .add = p.add || (!apart && !pass.is_first),
                    .bias = brings_bias ? p.bias + block.column + column : nullptr,
                    .sums = kept,
                    .sums_stride = block.columns});
}

template <typename T, typename C>
void MultiplyTask(const GemmProblem<T, C>& p, const Pass& pass, const Task& task) {
  // An epilogue follows a few panels of columns, which are in a near cache then.
  constexpr int64_t kTogether = 4;
  const TileRegisters registers;
  const bool finishes = p.epilogue != GemmEpilogue::kNone && pass.is_last;
  const int64_t row = task.i_begin * kTileRows;
  for (int64_t begin = task.j_begin; begin < task.j_end; begin += kTogether) {
    const int64_t end = std::min(begin + kTogether, task.j_end);
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t i = task.i_begin; i < task.i_end; ++i) MultiplyTile(p, pass, i, j);
    }
    if (!finishes) continue;
    const int64_t column = begin * kTileColumns;
    Finish(p, Block{.row = pass.block.row + row,
                    .rows = std::min(task.i_end * kTileRows, pass.block.rows) - row,
                    .column = pass.block.column + column,
                    .columns = std::min(end * kTileColumns, pass.block.columns) - column});
  }
}

// How the common dimension is cut.
struct Passes {
  int64_t steps = 0;  // of all passes together
  int64_t count = 1;
  int64_t pass_steps = 0;  // of each pass but the last, which may have fewer
};
template <typename T>
Passes PassesOf(int64_t k) {
  const int64_t steps = StepsOf<T>(k);
  const int64_t count = std::max<int64_t>(1, Quotient(steps, kPassSteps));
  return {steps, count, RoundUp(Quotient(steps, count), std::max<int64_t>(4, kStepUnit<T>))};
}

// Panels of all of b: those of columns [0, split), then those of the others.
struct Panels {
  int64_t before = 0, all = 0;

  Panels(int64_t n, int64_t split)
      : before(Quotient(split, kTileColumns)), all(before + Quotient(n - split, kTileColumns)) {}
  // Number of the panel that begins at a column.
  int64_t At(int64_t column, int64_t split) const {
    return column < split ? column / kTileColumns : before + (column - split) / kTileColumns;
  }
};

template <typename T>
GemmOperand<T> FromColumn(const GemmOperand<T>& b, int64_t column) {
  return {b.data + column * (b.transposed ? b.stride : 1), b.stride, b.transposed};
}

int64_t PackedWords(bool bf16, int64_t n, int64_t k, int64_t split) {
  return Panels(n, split).all * kTileColumns * (bf16 ? StepsOf<Bf16>(k) : StepsOf<float>(k));
}

// All panels of a pass lie side by side, those of the next pass behind them.
template <typename T>
void Pack(const GemmOperand<T>& b, int64_t n, int64_t k, int64_t split, uint32_t* packed) {
  const Passes passes = PassesOf<T>(k);
  const Panels panels(n, split);
#pragma omp parallel for schedule(dynamic, 4) if (n * k > (1 << 14))
  for (int64_t panel = 0; panel < panels.all; ++panel) {
    const int64_t begin = panel < panels.before ? 0 : split;
    const int64_t end = panel < panels.before ? split : n;
    const int64_t number = panel < panels.before ? panel : panel - panels.before;
    const GemmOperand<T> side = FromColumn(b, begin);
    for (int64_t pass = 0; pass < passes.count; ++pass) {
      const int64_t step = pass * passes.pass_steps;
      const int64_t here = std::min(passes.pass_steps, passes.steps - step);
      PackRight(side, number, end - begin, step * kDepth<T>,
                std::min(here * kDepth<T>, k - step * kDepth<T>),
                packed + (step * panels.all + panel * here) * kTileColumns);
    }
  }
}

template <typename T, typename C>
void Multiply(const GemmProblem<T, C>& p) {
  static thread_local ScratchMemory a_memory, b_memory, sums_memory;
  const Passes cut = PassesOf<T>(p.k);  // no binding: clang captures none for OpenMP
  const int64_t passes = cut.count, pass_steps = cut.pass_steps;
  const int64_t row_panels = Quotient(std::min(p.m, kPackedRows), kTileRows);
  const int64_t column_panels = Quotient(std::min(p.n, kPackedColumns), kTileColumns);
  uint32_t* const a = a_memory.Take<uint32_t>(row_panels * kTileRows * pass_steps);
  uint32_t* const b = p.packed_b != nullptr
                          ? nullptr
                          : b_memory.Take<uint32_t>(column_panels * kTileColumns * pass_steps);
  // Sums of passes but the last, where the result itself cannot hold them.
  const bool apart = passes > 1 && !std::is_same_v<C, float>;
  float* const sums =
      apart ? sums_memory.Take<float>(p.m * std::min(p.n, kPackedColumns)) : nullptr;
  const int threads = omp_get_max_threads();
  // No block has columns of both sides: gates, then ups.
  const int64_t split = GemmSplit(p.epilogue, p.n);
  const Panels all_panels(p.n, split);

#pragma omp parallel num_threads(threads) if (p.m * p.n * p.k > (1 << 18))
  for (int64_t jc = 0, columns = 0; jc < p.n; jc += columns) {
    columns = std::min(kPackedColumns, (jc < split ? split : p.n) - jc);
    const int64_t b_panels = Quotient(columns, kTileColumns);
    const GemmOperand<T> right = FromColumn(p.b, jc);
    for (int64_t number = 0; number < passes; ++number) {
      const int64_t first = number * pass_steps * kDepth<T>;
      const int64_t depth = std::min(pass_steps * kDepth<T>, p.k - first);
      const int64_t here = StepsOf<T>(depth);
      const uint32_t* panels = b;
      if (p.packed_b != nullptr) {
        panels =
            p.packed_b +
            (number * pass_steps * all_panels.all + all_panels.At(jc, split) * here) * kTileColumns;
      } else {
#pragma omp for schedule(dynamic, 4)
        for (int64_t panel = 0; panel < b_panels; ++panel) {
          PackRight(right, panel, columns, first, depth, b + panel * kTileColumns * here);
        }
      }
      for (int64_t ic = 0; ic < p.m; ic += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, p.m - ic);
        const int64_t a_panels = Quotient(rows, kTileRows);
        const GemmOperand<T> left{p.a.transposed ? p.a.data + ic : p.a.data + ic * p.a.stride,
                                  p.a.stride, p.a.transposed};
#pragma omp for schedule(dynamic, 4)
        for (int64_t panel = 0; panel < a_panels; ++panel) {
          PackLeft(left, panel, rows, first, depth, a + panel * kTileRows * here);
        }
        const Pass pass{.a = a,
                        .b = panels,
                        .steps = here,
                        .block = {.row = ic, .rows = rows, .column = jc, .columns = columns},
                        .is_first = number == 0,
                        .is_last = number == passes - 1,
                        .sums = sums};
        // Tasks of a block of rows and a part of the columns: several for each thread.
        const int64_t block = kBlockRows / kTileRows;
        const int64_t blocks = Quotient(a_panels, block);
        const int64_t parts =
            threads == 1 ? 1 : std::min(b_panels, Quotient(int64_t{4} * threads, blocks));
        const int64_t part = Quotient(b_panels, parts);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < blocks * parts; ++task) {
          const int64_t i = task / parts * block, j = task % parts * part;
          MultiplyTask(p, pass,
                       Task{.i_begin = i,
                            .i_end = std::min(i + block, a_panels),
                            .j_begin = j,
                            .j_end = std::min(j + part, b_panels)});
        }
      }
    }
  }
}

// A tile's sums over one step again and again, whose operands stay in the first-level cache.
template <typename T>
double Peak(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 20000 * kStepUnit<T>;
  constexpr double kFlops = 2.0 * kSteps * kTileRows * kTileColumns * kDepth<T>;
  alignas(64) const uint32_t a[kTileRows * kStepUnit<T>] = {}, b[kTileColumns * kStepUnit<T>] = {};
  const TileRegisters registers;
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (Clock::time_point last = start; last - start < std::chrono::duration<double>(seconds);) {
    Tile tile;
    SumAgain<T>(kSteps, a, b, tile);
    asm volatile("" : : "r"(&tile), "r"(a), "r"(b) : "memory");
    const Clock::time_point now = Clock::now();
    best = std::max(best, kFlops / std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return best;
}

double RegisterPeak(bool bf16, double seconds) {
#if !defined(WEFT_KERNELS_AMX)
  if (!bf16) return Peak<float>(seconds);
#endif
  return bf16 ? Peak<Bf16>(seconds) : 0;
}

}  // namespace

GemmTable Gemm() {
  GemmTable table;
#if !defined(WEFT_KERNELS_AMX)  // which multiplies no floats
  table.f32 = &Multiply<float, float>;
  table.pack_f32 = &Pack<float>;
#endif
  table.bf16 = &Multiply<Bf16, Bf16>;
  table.bf16_to_fp32 = &Multiply<Bf16, float>;
  table.packed_words = &PackedWords;
  table.pack_bf16 = &Pack<Bf16>;
  table.has_bf16 = kHasPairs;
  table.register_peak = &RegisterPeak;
  return table;
}

}  // namespace weft::train::kernels::WEFT_KERNEL_SET
