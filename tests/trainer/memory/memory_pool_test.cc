// Memory that is kept from step to step, and the tensors that live in it.
#include "trainer/memory/memory_pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "base/random.h"
#include "trainer/memory/memory.h"

namespace weft::train {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

struct Piece {
  char* data = nullptr;
  size_t bytes = 0;
};
Piece Take(MemoryPool& pool, size_t bytes) {
  Piece piece{.bytes = bytes};
  piece.data = static_cast<char*>(pool.Allocate(piece.bytes));
  EXPECT_NE(piece.data, nullptr);
  EXPECT_GE(piece.bytes, bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data) % MemoryPool::kUnit, 0U);
  return piece;
}
void Give(MemoryPool& pool, const Piece& piece) { pool.Free(piece.data, piece.bytes); }

// As a step does: activations pile up, each with something that goes at once, and go in the other
// order. Touches all of it.
void TakeAStep(MemoryPool& pool) {
  std::vector<Piece> kept;
  for (size_t layer = 0; layer < 12; ++layer) {
    kept.push_back(Take(pool, kMebibyte + layer * 100'000));
    const Piece passing = Take(pool, 3 * kMebibyte + layer * 7);
    std::memset(kept.back().data, 1, kept.back().bytes);
    std::memset(passing.data, 2, passing.bytes);
    Give(pool, passing);
  }
  while (!kept.empty()) {
    const Piece gradient = Take(pool, kept.back().bytes + 5000);
    std::memset(gradient.data, 3, gradient.bytes);
    Give(pool, kept.back());
    Give(pool, gradient);
    kept.pop_back();
  }
}

TEST(MemoryPoolTest, AStepLikeTheOneBeforeAsksTheKernelForNothing) {
  MemoryPool pool;
  TakeAStep(pool);
  TakeAStep(pool);
  const int64_t mappings = pool.mappings(), faults = MinorFaults();
  const size_t free = pool.free_bytes();
  for (int step = 0; step < 5; ++step) TakeAStep(pool);
  EXPECT_EQ(pool.mappings(), mappings);
  EXPECT_EQ(pool.free_bytes(), free);
  EXPECT_LE(MinorFaults() - faults, 20);  // 5 steps of some 17 MiB
}

TEST(MemoryPoolTest, FreeNeighboursAreOneAgainWhateverTheirOrder) {
  MemoryPool pool;
  const size_t part = MemoryPool::kMapping / 4;
  for (const std::vector<size_t>& order :
       std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 0, 2}}) {
    std::vector<Piece> pieces;
    for (int i = 0; i < 4; ++i) pieces.push_back(Take(pool, part));
    for (size_t i : order) Give(pool, pieces[i]);
    const Piece whole = Take(pool, MemoryPool::kMapping);
    std::memset(whole.data, 1, whole.bytes);
    Give(pool, whole);
  }
  EXPECT_EQ(pool.mappings(), 1);
  EXPECT_EQ(pool.free_bytes(), MemoryPool::kMapping);
}

TEST(MemoryPoolTest, APieceLargerThanAMappingHasOneOfItsOwn) {
  MemoryPool pool;
  const Piece large = Take(pool, 3 * MemoryPool::kMapping + 1);
  std::memset(large.data, 1, large.bytes);
  EXPECT_EQ(pool.mappings(), 1);
  EXPECT_LT(pool.mapped_bytes(), 3 * MemoryPool::kMapping + 3 * kMebibyte);
  Give(pool, large);
  Give(pool, Take(pool, MemoryPool::kMapping));
  EXPECT_EQ(pool.mappings(), 1);
}

// What a larger request finds free below it is a part of it, where the kernel maps side by side.
TEST(MemoryPoolTest, AFreePieceThatIsTooSmallIsExtended) {
  MemoryPool pool;
  const Piece first = Take(pool, MemoryPool::kMapping);
  std::memset(first.data, 1, first.bytes);
  Give(pool, first);
  const Piece larger = Take(pool, 2 * MemoryPool::kMapping);
  std::memset(larger.data, 2, larger.bytes);
  EXPECT_EQ(pool.mapped_bytes(), 2 * MemoryPool::kMapping);
  Give(pool, larger);
  EXPECT_EQ(pool.free_bytes(), pool.mapped_bytes());
}

TEST(MemoryPoolTest, WhatIsFreeGoesBackToTheKernelAndMayBeTakenAgain) {
  MemoryPool pool;
  const Piece kept = Take(pool, kMebibyte);
  std::memset(kept.data, 7, kept.bytes);
  Piece gone = Take(pool, 24 * kMebibyte);
  std::memset(gone.data, 8, gone.bytes);
  Give(pool, gone);
  const int64_t before = AnonymousMemory().count();
  pool.GiveBack();
  EXPECT_LT(AnonymousMemory().count(), before - static_cast<int64_t>(20 * kMebibyte));
  EXPECT_EQ(kept.data[0], 7);
  EXPECT_EQ(kept.data[kept.bytes - 1], 7);
  gone = Take(pool, 24 * kMebibyte);
  EXPECT_EQ(gone.data[12 * kMebibyte], 0);
  std::memset(gone.data, 9, gone.bytes);
  EXPECT_EQ(pool.mappings(), 1);
}

TEST(MemoryPoolTest, ThreadsNeverShareAPiece) {
  MemoryPool pool;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&pool, number] {
      Random random(static_cast<uint64_t>(number + 1));
      std::deque<Piece> held;
      for (int i = 0; i < 2000; ++i) {
        held.push_back(Take(pool, 64 + random.Below(200'000)));
        std::memset(held.back().data, number, held.back().bytes);
        if (held.size() < 8) continue;
        const Piece piece = held.front();
        held.pop_front();
        EXPECT_EQ(piece.data[0], number);
        EXPECT_EQ(piece.data[piece.bytes / 2], number);
        EXPECT_EQ(piece.data[piece.bytes - 1], number);
        Give(pool, piece);
      }
      for (const Piece& piece : held) Give(pool, piece);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.free_bytes(), pool.mapped_bytes());
}

TEST(TensorMemoryTest, TensorsOfAllSizesAreCountedAndKept) {
  CountTensorMemory();
  const int64_t before = TensorMemory().count();
  const auto make = [] {
    std::vector<at::Tensor> tensors;
    for (int64_t bytes : {1, 1000, 65'000, 66'000, 3'000'000, 40'000'000}) {
      tensors.push_back(at::full({bytes}, 5, at::kByte));
    }
    return tensors;
  };
  std::vector<at::Tensor> tensors = make();
  EXPECT_EQ(TensorMemory().count() - before, 1 + 1000 + 65'000 + 66'000 + 3'000'000 + 40'000'000);
  for (const at::Tensor& tensor : tensors) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0U);
    EXPECT_EQ(tensor[-1].item<int>(), 5);
  }
  tensors.clear();
  EXPECT_EQ(TensorMemory().count(), before);
  const int64_t mappings = TensorMappings(), faults = MinorFaults();
  EXPECT_GT(mappings, 0);
  tensors = make();
  EXPECT_EQ(TensorMappings(), mappings);
  EXPECT_LE(MinorFaults() - faults, 40);  // 43 MB again
  tensors.clear();
  GiveBackFreeMemory();
  EXPECT_GT(AvailableMemory().count(), 0);
  EXPECT_LE(AvailableMemory().count(), MachineMemory().count());
}

}  // namespace
}  // namespace weft::train
