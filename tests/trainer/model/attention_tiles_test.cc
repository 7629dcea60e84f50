// Attention by tiles, against the same with all scores at once.
#include "trainer/model/attention_tiles.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft::train {
namespace {

struct Case {
  int64_t length = 0;
  int64_t window = 0;
  int64_t kv_heads = 4;
};

constexpr int64_t kHeads = 4, kWidth = 8;
constexpr KernelLibrary kLibraries[] = {KernelLibrary::kAten, KernelLibrary::kWeft};

std::vector<at::Tensor> Leaves(const Case& c) {
  torch::manual_seed(11);
  std::vector<at::Tensor> leaves;
  for (int64_t heads : {kHeads, c.kv_heads, c.kv_heads}) {
    leaves.push_back(at::randn({2, heads, c.length, kWidth}).requires_grad_());
  }
  return leaves;
}

at::Tensor Reference(const std::vector<at::Tensor>& leaves, int64_t window) {
  const int64_t group = kHeads / leaves[1].size(1), length = leaves[0].size(2);
  at::Tensor key = leaves[1].repeat_interleave(group, 1);
  at::Tensor value = leaves[2].repeat_interleave(group, 1);
  at::Tensor distance = at::arange(length).unsqueeze(1) - at::arange(length);
  at::Tensor hidden = distance < 0;
  if (window > 0) hidden = hidden.logical_or(distance >= window);
  at::Tensor scores = at::matmul(leaves[0], key.transpose(2, 3)) / std::sqrt(double(kWidth));
  return at::matmul(at::softmax(scores.masked_fill(hidden, -INFINITY), -1), value);
}

AttentionInputs Detached(const std::vector<at::Tensor>& leaves) {
  return {leaves[0].detach(), leaves[1].detach(), leaves[2].detach()};
}

void ExpectGradients(const std::vector<at::Tensor>& leaves, const AttentionInputs& gradients) {
  EXPECT_TRUE(at::allclose(gradients.query, leaves[0].grad(), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(gradients.key, leaves[1].grad(), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(gradients.value, leaves[2].grad(), 1e-4, 1e-5));
}

class AttentionTilesTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionTilesTest, OutputsAndGradientsAreThoseOfAllScores) {
  const std::vector<at::Tensor> leaves = Leaves(GetParam());
  const at::Tensor expected = Reference(leaves, GetParam().window);
  const at::Tensor dout = at::randn(expected.sizes());
  expected.backward(dout);
  const AttentionInputs inputs = Detached(leaves);
  for (KernelLibrary library : kLibraries) {
    const AttentionOutputs outputs = Attend(library, inputs, GetParam().window);
    EXPECT_TRUE(at::allclose(outputs.out, expected, 1e-4, 1e-5));
    const AttentionInputs gradients{at::empty_like(inputs.query), at::empty_like(inputs.key),
                                    at::empty_like(inputs.value)};
    AttendBackward(library, dout, inputs, outputs, GetParam().window, gradients);
    ExpectGradients(leaves, gradients);
  }
}

// Keys in pieces of any order, as they come around a ring; queries in two pieces that are no
// neighbours.
TEST_P(AttentionTilesTest, PiecesOfKeysAreBroughtTogetherExactly) {
  const std::vector<at::Tensor> leaves = Leaves(GetParam());
  const int64_t length = GetParam().length, window = GetParam().window, piece = length / 4;
  const at::Tensor expected = Reference(leaves, window);
  const at::Tensor dout = at::randn(expected.sizes());
  expected.backward(dout);
  const AttentionInputs inputs = Detached(leaves);
  auto zeros = [](const at::Tensor& like) { return at::zeros_like(like); };
  const std::vector<std::vector<TokenSpan>> halves = {
      {{0, 0, piece}, {3 * piece, 3 * piece, length - 3 * piece}},
      {{piece, piece, piece}, {2 * piece, 2 * piece, piece}}};
  for (KernelLibrary library : kLibraries) {
    AttentionOutputs sum = EmptyAttention(inputs.query);
    for (const auto& queries : halves) {
      for (const auto& keys : {halves[1], halves[0]}) {
        AddAttention(library, inputs, AttentionTiles(queries, keys, window), window, sum);
      }
    }
    EXPECT_TRUE(at::allclose(sum.out, expected, 1e-4, 1e-5));
    const AttentionInputs gradients{zeros(inputs.query), zeros(inputs.key), zeros(inputs.value)};
    for (const auto& queries : halves) {
      for (const auto& keys : halves) {
        AddAttentionBackward(library, dout, inputs, sum, AttentionTiles(queries, keys, window),
                             window, gradients);
      }
    }
    ExpectGradients(leaves, gradients);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionTilesTest,
                         ::testing::Values(Case{16}, Case{16, 1}, Case{16, 5, 2}, Case{300, 0, 1},
                                           Case{300, 7}, Case{300, 100, 2}, Case{300, 299},
                                           Case{300, 1000}));

// Outputs and gradients over some of the keys, without sums before: what is there is overwritten,
// and what no tile has is 0.
TEST(AttentionTiles, TilesAloneGiveWhatTheyAddToNothing) {
  const std::vector<at::Tensor> leaves = Leaves({.length = 32, .kv_heads = 2});
  const AttentionInputs inputs = Detached(leaves);
  auto whole_rows = [](int64_t at, int64_t count) { return TokenSpan{at, at, count}; };
  const std::vector<std::vector<TokenSpan>> queries = {
      {whole_rows(0, 32)}, {whole_rows(8, 24)}, {whole_rows(0, 8), whole_rows(24, 8)}};
  const at::Tensor dout = at::randn(leaves[0].sizes());
  for (KernelLibrary library : kLibraries) {
    const AttentionOutputs all = Attend(library, inputs, 0);
    for (const std::vector<TokenSpan>& spans : queries) {
      const std::vector<AttentionTile> tiles = AttentionTiles(spans, {whole_rows(0, 8)}, 0);
      AttentionOutputs sum = EmptyAttention(inputs.query);
      AddAttention(library, inputs, tiles, 0, sum);
      const AttentionOutputs alone = AttendTiles(library, inputs, tiles, 0);
      EXPECT_TRUE(at::allclose(alone.out, sum.out, 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(alone.logsumexp, sum.logsumexp, 1e-5, 1e-6));
      const AttentionInputs added{at::zeros_like(inputs.query), at::zeros_like(inputs.key),
                                  at::zeros_like(inputs.value)};
      AddAttentionBackward(library, dout, inputs, all, tiles, 0, added);
      const AttentionInputs written{at::full_like(inputs.query, NAN),
                                    at::full_like(inputs.key, NAN),
                                    at::full_like(inputs.value, NAN)};
      AttendTilesBackward(library, dout, inputs, all, tiles, 0, written);
      EXPECT_TRUE(at::allclose(written.query, added.query, 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(written.key, added.key, 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(written.value, added.value, 1e-5, 1e-6));
    }
  }
}

// What a rank of a ring of two has: its own stretches, and those of the other.
TEST(AttentionTiles, RowsSideBySideShareATile) {
  const std::vector<TokenSpan> outer = {{0, 0, 64}, {64, 192, 64}};
  const std::vector<TokenSpan> inner = {{0, 64, 64}, {64, 128, 64}};
  for (const std::vector<TokenSpan>& spans : {outer, inner}) {
    const std::vector<AttentionTile> own = AttentionTiles(spans, spans, 0);
    ASSERT_EQ(own.size(), 1U);
    EXPECT_EQ(own[0].mask, AttentionTile::kCausal);
    EXPECT_EQ(own[0].queries, 128);
    EXPECT_EQ(own[0].keys, 128);
  }
  // A window is measured in positions, which these rows do not have side by side.
  EXPECT_GT(AttentionTiles(outer, outer, 100).size(), 1U);
  const std::vector<AttentionTile> late = AttentionTiles(outer, inner, 0);
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].mask, AttentionTile::kNone);
  EXPECT_EQ(late[0].query, 64);
  EXPECT_EQ(late[0].queries, 64);
  EXPECT_EQ(late[0].keys, 128);
  const std::vector<AttentionTile> early = AttentionTiles(inner, outer, 0);
  ASSERT_EQ(early.size(), 1U);
  EXPECT_EQ(early[0].mask, AttentionTile::kNone);
  EXPECT_EQ(early[0].queries, 128);
  EXPECT_EQ(early[0].key, 0);
  EXPECT_EQ(early[0].keys, 64);
}

int64_t Pairs(int64_t length, int64_t window) {
  int64_t pairs = 0;
  const TokenSpan whole{0, 0, length};
  for (const AttentionTile& tile : AttentionTiles({whole}, {whole}, window)) {
    pairs += tile.queries * tile.keys;
  }
  return pairs;
}

TEST(AttentionTiles, WorkIsLinearInTheLengthOnceThereIsAWindow) {
  EXPECT_EQ(Pairs(4096, 0), 4096 * 4096);
  for (int64_t length : {1024, 2048, 4096}) {
    for (int64_t window : {64, 128, 256}) EXPECT_LE(Pairs(length, window), 2 * length * window);
    EXPECT_LE(Pairs(length, 1), length * 64);
  }
}

TEST(AttentionTiles, KeysThatNoQuerySeesAreInNoTile) {
  const TokenSpan early{0, 0, 64}, late{0, 64, 64}, latest{0, 256, 64};
  EXPECT_TRUE(AttentionTiles({early}, {late}, 0).empty());
  EXPECT_TRUE(AttentionTiles({latest}, {early}, 100).empty());
  const std::vector<AttentionTile> tiles = AttentionTiles({late}, {early}, 0);
  ASSERT_EQ(tiles.size(), 1U);
  EXPECT_EQ(tiles[0].mask, AttentionTile::kNone);
}

}  // namespace
}  // namespace weft::train
