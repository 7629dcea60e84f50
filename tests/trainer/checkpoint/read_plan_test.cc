#include "trainer/checkpoint/read_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace weft::train {
namespace {

using Needs = std::vector<std::vector<ReadNeed>>;

// A 6 x 4 matrix, cut by columns over two shards, and a vector of 10 in three runs of one shard.
Manifest TwoBuffers() {
  Manifest manifest;
  manifest.world_size = 2;
  manifest.buffers.resize(2);
  manifest.buffers[0] = {.name = "matrix", .elements = 24};
  manifest.buffers[0].slices = {
      {.shard = 0, .at = 0, .range = {.begin = 0, .length = 2, .stride = 4, .count = 6}},
      {.shard = 1, .at = 0, .range = {.begin = 2, .length = 2, .stride = 4, .count = 6}}};
  manifest.buffers[1] = {.name = "vector", .elements = 10};
  manifest.buffers[1].slices = {{.shard = 1, .at = 0, .range = ElementRange::Run(4, 10)},
                                {.shard = 1, .at = 6, .range = ElementRange::Run(0, 4)}};
  return manifest;
}

// What a rank gets of a need: of each of its elements, (shard, element of the shard's tensor).
using Got = std::map<std::pair<size_t, size_t>, std::map<int64_t, std::pair<int, int64_t>>>;

Got Execute(const ReadPlan& plan, int64_t round_bytes, int64_t& read_bytes) {
  Got got;
  std::map<std::pair<size_t, int>, int64_t> read;  // of each tensor, up to here
  read_bytes = 0;
  for (const std::vector<ReadChunk>& chunks : plan.rounds) {
    std::map<size_t, int64_t> in_round;
    for (const ReadChunk& chunk : chunks) {
      EXPECT_EQ(chunk.begin, (read[{chunk.buffer, chunk.shard}]));  // in order, nothing twice
      read[{chunk.buffer, chunk.shard}] = chunk.end;
      EXPECT_LE(chunk.end, chunk.tensor_elements);
      const int64_t bytes = 4 * (chunk.end - chunk.begin);
      in_round[chunk.reader] += bytes;
      read_bytes += bytes;
      for (const ReadPiece& piece : chunk.pieces) {
        EXPECT_GE(piece.from, chunk.begin);
        EXPECT_LE(piece.from + piece.elements, chunk.end);
        for (int64_t i = 0; i < piece.elements; ++i) {
          auto& elements = got[{piece.rank, piece.need}];
          EXPECT_EQ(elements.count(piece.to + i), 0U);
          elements[piece.to + i] = {chunk.shard, piece.from + i};
        }
      }
    }
    for (const auto& [reader, bytes] : in_round) EXPECT_LE(bytes, round_bytes);
  }
  return got;
}

TEST(ReadPlan, EachRankGetsWhatItNeedsAndEachByteIsReadOnce) {
  const Manifest manifest = TwoBuffers();
  // Rank 0: rows 1 to 3; rank 1: columns 1 and 2; rank 2: all of the vector, and row 1 again.
  const Needs needs = {{{0, ElementRange::Run(4, 16)}},
                       {{0, {.begin = 1, .length = 2, .stride = 4, .count = 6}}},
                       {{1, ElementRange::Run(0, 10)}, {0, ElementRange::Run(4, 8)}}};
  for (const int64_t round_bytes : {4, 12, 20, 1000}) {
    SCOPED_TRACE(round_bytes);
    const ReadPlan plan = PlanRead(manifest, needs, round_bytes, {});
    int64_t read_bytes = 0;
    const Got got = Execute(plan, round_bytes, read_bytes);
    EXPECT_EQ(read_bytes, 4 * (24 + 10));
    EXPECT_EQ(plan.read_bytes, read_bytes);
    EXPECT_EQ(plan.needed_bytes, 4 * (12 + 12 + 14));
    for (size_t rank = 0; rank < needs.size(); ++rank) {
      for (size_t need = 0; need < needs[rank].size(); ++need) {
        const auto& [buffer, range] = needs[rank][need];
        const auto& elements = got.at({rank, need});
        ASSERT_EQ(static_cast<int64_t>(elements.size()), range.elements());
        for (const auto& [at, place] : elements) {
          const int64_t element =
              range.begin + at / range.length * range.stride + at % range.length;
          const std::pair<int, int64_t> expected =
              buffer == 0 ? std::pair<int, int64_t>(element % 4 / 2, element / 4 * 2 + element % 2)
                          : std::pair<int, int64_t>(1, element < 4 ? 6 + element : element - 4);
          EXPECT_EQ(place, expected) << "rank " << rank << ", element " << element;
        }
      }
    }
  }
}

TEST(ReadPlan, ReplicasShareTheReadingAndWhoNeedsMostReads) {
  const Manifest manifest = TwoBuffers();
  const std::vector<ReadNeed> all = {{0, ElementRange::Run(0, 24)}, {1, ElementRange::Run(0, 10)}};
  const ReadPlan shared = PlanRead(manifest, Needs(3, all), 1000, {});
  std::set<size_t> readers;
  for (const ReadChunk& chunk : shared.rounds.at(0)) readers.insert(chunk.reader);
  EXPECT_EQ(shared.rounds.size(), 1U);
  EXPECT_EQ(readers.size(), 3U);
  EXPECT_EQ(shared.read_bytes, 4 * 34);
  EXPECT_EQ(shared.passed_bytes, 2 * 4 * 34);

  // The layout that has written it: everybody reads its own shard, and nothing is passed on.
  const Needs own = {
      {{0, {.begin = 0, .length = 2, .stride = 4, .count = 6}}},
      {{0, {.begin = 2, .length = 2, .stride = 4, .count = 6}}, {1, ElementRange::Run(0, 10)}}};
  const ReadPlan same = PlanRead(manifest, own, 1000, {});
  EXPECT_EQ(same.passed_bytes, 0);
  EXPECT_EQ(same.read_bytes, same.needed_bytes);

  // Nobody needs the vector: it is not read.
  EXPECT_EQ(PlanRead(manifest, {{{0, ElementRange::Run(0, 4)}}, {}}, 1000, {}).read_bytes, 4 * 24);
}

}  // namespace
}  // namespace weft::train
