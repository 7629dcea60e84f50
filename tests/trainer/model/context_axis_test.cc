// Attention by exchanged heads (Ulysses), on ranks that are threads, beside attention on whole
// samples.
#include "trainer/model/context_axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/trace.h"
#include "tests/collectives/job.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 2;
constexpr int64_t kTokens = 24, kWidth = 4;
constexpr int kComputeTrack = 0, kExchangeTrack = 1;

TEST(HeadEdgesTest, OuterPiecesAreSmallAndWithoutOverlapThereIsOne) {
  EXPECT_THAT(HeadEdges(28, true), ElementsAre(0, 1, 3, 6, 10, 14, 18, 22, 25, 27, 28));
  EXPECT_THAT(HeadEdges(16, true), ElementsAre(0, 1, 3, 4, 6, 8, 10, 12, 13, 15, 16));
  EXPECT_THAT(HeadEdges(7, true), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(HeadEdges(3, true), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(HeadEdges(1, true), ElementsAre(0, 1));
  EXPECT_THAT(HeadEdges(14, false), ElementsAre(0, 14));
}

struct Shape {
  int64_t batch = 1, heads = 1, kv_heads = 1, window = 0;
  at::ScalarType type = at::kFloat;
  size_t pieces = 1;  // with overlap
};

// Outputs and gradients: of whole samples, or a rank's rows of them.
struct Results {
  at::Tensor out;
  AttentionInputs gradients;
  std::vector<at::Tensor> all() const {
    return {out, gradients.query, gradients.key, gradients.value};
  }
};

AttentionInputs EmptyLike(const AttentionInputs& inputs) {
  const auto empty = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {empty(inputs.query), empty(inputs.key), empty(inputs.value)};
}

class AttendByHeadsTest : public ::testing::TestWithParam<Shape> {
 protected:
  AttendByHeadsTest() {
    at::manual_seed(7);
    const auto random = [&](int64_t heads) {
      return at::randn({GetParam().batch, heads, kTokens, kWidth}).to(GetParam().type);
    };
    inputs_ = {random(GetParam().heads), random(GetParam().kv_heads), random(GetParam().kv_heads)};
    dout_ = random(GetParam().heads);
  }

  Results OfWholeSamples() const {
    const int64_t window = GetParam().window;
    Results results{{}, EmptyLike(inputs_)};
    const AttentionOutputs outputs = Attend(KernelLibrary::kWeft, inputs_, window);
    results.out = outputs.out;
    AttendBackward(KernelLibrary::kWeft, dout_, inputs_, outputs, window, results.gradients);
    return results;
  }

  struct Ranks {
    std::vector<Results> results;
    std::vector<size_t> pieces;
    std::vector<int> called_early;  // exchanges, before the wait for the one before them
    std::vector<size_t> exchanges;
  };
  Ranks Exchanged(bool overlaps) const {
    Ranks ranks{std::vector<Results>(kRanks), std::vector<size_t>(kRanks), std::vector<int>(kRanks),
                std::vector<size_t>(kRanks)};
    collectives::RunRanks(kRanks, {}, [&](std::shared_ptr<collectives::Endpoint> endpoint) {
      auto group = Group::Create(std::move(endpoint), "context", collectives::AllRanks(kRanks));
      ASSERT_TRUE(group.ok()) << group.status();
      (*group)->set_overlaps(overlaps);
      Trace trace({"compute", "exchanges", "exposed"});
      (*group)->SetTrace(&trace,
                         {.compute = kComputeTrack, .collectives = kExchangeTrack, .exposed = 2});
      const ContextAxis axis(group->get(), ContextMethod::kUlysses);
      const auto rank = static_cast<size_t>(axis.rank());
      const auto held = [&](const at::Tensor& x) { return HeldBy(axis.rank(), x); };
      const AttentionInputs here{held(inputs_.query), held(inputs_.key), held(inputs_.value)};
      const AttendedHeads attended =
          AttendByHeads(axis, KernelLibrary::kWeft, here, GetParam().window);
      Results& results = ranks.results[rank];
      results = {attended.out, EmptyLike(here)};
      AttendByHeadsBackward(axis, KernelLibrary::kWeft, held(dout_), attended.pieces,
                            GetParam().window, results.gradients);
      ranks.pieces[rank] = attended.pieces.size();
      Look(trace, ranks.exchanges[rank], ranks.called_early[rank]);
    });
    return ranks;
  }

  static at::Tensor HeldBy(int rank, const at::Tensor& x) {
    return x.narrow(2, rank * kTokens / kRanks, kTokens / kRanks);
  }

  AttentionInputs inputs_;
  at::Tensor dout_;

 private:
  // An exchange is recorded behind the wait for it, from its call or the end of the exchange before
  // it on, whichever is later: before the end of the wait for that one, if it was called before it.
  static void Look(const Trace& trace, size_t& exchanges, int& called_early) {
    std::vector<TraceSpan> waits, moved;
    for (const TraceSpan& span : trace.Snapshot()) {
      if (span.track == kComputeTrack) waits.push_back(span);
      if (span.track == kExchangeTrack) moved.push_back(span);
    }
    ASSERT_EQ(waits.size(), moved.size());
    exchanges = moved.size();
    for (size_t i = 0; i + 1 < moved.size(); ++i) {
      called_early += moved[i + 1].start_ns < waits[i].end_ns ? 1 : 0;
    }
  }
};

TEST_P(AttendByHeadsTest, PiecesHaveTheBitsOfOnePieceAndTheNumbersOfWholeSamples) {
  const double tolerance = GetParam().type == at::kFloat ? 1e-5 : 3e-2;
  const std::vector<at::Tensor> whole = OfWholeSamples().all();
  const Ranks pieces = Exchanged(/*overlaps=*/true), one = Exchanged(/*overlaps=*/false);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const std::vector<at::Tensor> of_pieces = pieces.results[r].all(),
                                  of_one = one.results[r].all();
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(at::equal(of_pieces[i], of_one[i])) << "rank " << rank << ", tensor " << i;
      EXPECT_TRUE(at::allclose(of_pieces[i], HeldBy(rank, whole[i]), tolerance, tolerance))
          << "rank " << rank << ", tensor " << i;
    }
  }
}

// Each pass has an exchange there and one back a piece; all but the first were called before the
// wait for the one before.
TEST_P(AttendByHeadsTest, PiecesAreOnTheirWayTogether) {
  const size_t count = GetParam().pieces;
  const Ranks pieces = Exchanged(/*overlaps=*/true), one = Exchanged(/*overlaps=*/false);
  EXPECT_THAT(pieces.pieces, ElementsAre(count, count));
  EXPECT_THAT(pieces.exchanges, ElementsAre(4 * count, 4 * count));
  const int early = count == 1 ? 0 : 2 * (2 * static_cast<int>(count) - 1);
  EXPECT_THAT(pieces.called_early, ElementsAre(early, early));
  EXPECT_THAT(one.pieces, ElementsAre(1, 1));
  EXPECT_THAT(one.called_early, ElementsAre(0, 0));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttendByHeadsTest,
    ::testing::Values(Shape{.heads = 8, .kv_heads = 8, .pieces = 4},
                      Shape{.batch = 2, .heads = 24, .kv_heads = 24, .window = 5, .pieces = 10},
                      Shape{.batch = 2, .heads = 12, .kv_heads = 6, .pieces = 3},
                      Shape{.heads = 8, .kv_heads = 4, .type = at::kBFloat16, .pieces = 2},
                      // Keys and values are repeated: the second of three heads on both ranks.
                      Shape{.batch = 2, .heads = 12, .kv_heads = 3, .pieces = 3},
                      Shape{.heads = 4, .kv_heads = 1, .window = 7, .pieces = 1}),
    [](const auto& info) {
      const Shape& shape = info.param;
      return absl::StrCat(shape.batch, "_of_", shape.heads, "_heads_", shape.kv_heads,
                          "_key_value_heads_window_", shape.window);
    });

}  // namespace
}  // namespace weft::train
