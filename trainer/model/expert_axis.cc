#include "trainer/model/expert_axis.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"
#include "trainer/groups/status_error.h"

namespace weft::train {

ExpertAxis::ExpertAxis(Group* group, int64_t experts, int pieces, int replicas)
    : group_(group),
      experts_(experts),
      pieces_of_expert_(
          static_cast<int>(std::max<int64_t>(1, (pieces * group->size() + experts - 1) / experts))),
      replicas_(replicas) {
  WEFT_CHECK(experts % group->size() == 0, experts << " experts, " << group->size() << " ranks");
}

int64_t ExpertAxis::Plan::PieceRows(int piece) const {
  const std::vector<size_t>& counts = received[static_cast<size_t>(piece)];
  return static_cast<int64_t>(std::accumulate(counts.begin(), counts.end(), size_t{0}));
}

at::Tensor ExpertAxis::ExchangeCounts(const at::Tensor& counts) const {
  const int64_t ranks = group_->size();
  at::Tensor here = at::empty({ranks, experts_here() + 1}, counts.options());
  const at::Tensor all = counts.sum().expand({ranks, 1});
  Pending pending =
      ValueOrThrow(group_->AllToAll(here, at::cat({counts.view({ranks, experts_here()}), all}, 1)));
  ThrowIfError(group_->Wait(pending));
  return here;
}

ExpertAxis::Plan ExpertAxis::MakePlan(const at::Tensor& counts,
                                      const at::Tensor& counts_here) const {
  const int64_t ranks = group_->size(), here = experts_here();
  const at::Tensor mine = counts.cpu(), theirs = counts_here.cpu();
  const int64_t* mine_of = mine.data_ptr<int64_t>();
  const int64_t* theirs_of = theirs.data_ptr<int64_t>();
  Plan plan;
  std::vector<int64_t> begin(static_cast<size_t>(experts_));  // of each expert's rows, as sent
  for (int64_t expert = 0; expert < experts_; ++expert) {
    begin[static_cast<size_t>(expert)] = plan.rows_sent;
    plan.rows_sent += mine_of[expert];
  }
  for (int64_t expert = 0; expert < here; ++expert) {
    for (int64_t part = 0; part < pieces_of_expert_; ++part) {
      // Part of `rows`: the same at both ends.
      auto edge = [&](int64_t rows, int64_t number) { return rows * number / pieces_of_expert_; };
      std::vector<size_t> sent, sent_at, received, received_at;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t own = mine_of[rank * here + expert];
        const int64_t first = edge(own, part);
        sent.push_back(static_cast<size_t>(edge(own, part + 1) - first));
        sent_at.push_back(
            static_cast<size_t>(begin[static_cast<size_t>(rank * here + expert)] + first));
        const int64_t rows = theirs_of[rank * (here + 1) + expert];
        const int64_t count = edge(rows, part + 1) - edge(rows, part);
        received.push_back(static_cast<size_t>(count));
        received_at.push_back(static_cast<size_t>(plan.rows_received));
        plan.rows_received += count;
      }
      plan.sent.push_back(std::move(sent));
      plan.sent_at.push_back(std::move(sent_at));
      plan.received.push_back(std::move(received));
      plan.received_at.push_back(std::move(received_at));
    }
  }
  int64_t all_rows = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) all_rows += theirs_of[rank * (here + 1) + here];
  plan.typical_rows = std::max<int64_t>(all_rows / (ranks * ranks * pieces()), 1);
  return plan;
}

ExpertAxis::PieceParts ExpertAxis::PartsOf(const Plan& plan, int piece) const {
  const size_t p = static_cast<size_t>(piece), rank = static_cast<size_t>(group_->rank());
  const int64_t begin = plan.PieceBegin(piece), end = begin + plan.PieceRows(piece);
  const auto own = static_cast<int64_t>(plan.received_at[p][rank]);
  const auto rows = static_cast<int64_t>(plan.received[p][rank]);
  return {{begin, own - begin}, {own, rows}, {own + rows, end - own - rows}};
}

std::vector<size_t> ExpertAxis::OfOthers(std::vector<size_t> counts) const {
  counts[static_cast<size_t>(group_->rank())] = 0;
  return counts;
}

Pending ExpertAxis::StartDispatch(const Plan& plan, int piece, const at::Tensor& rows,
                                  const at::Tensor& received) const {
  const size_t p = static_cast<size_t>(piece);
  const std::vector<size_t> arriving = OfOthers(plan.received[p]), leaving = OfOthers(plan.sent[p]);
  return ValueOrThrow(group_->ExchangeRows(received, {arriving, plan.received_at[p]}, rows,
                                           {leaving, plan.sent_at[p]}, plan.typical_rows,
                                           "dispatch", "wait_dispatch"));
}

Pending ExpertAxis::StartReturn(const Plan& plan, int piece, const at::Tensor& received,
                                const at::Tensor& rows) const {
  const size_t p = static_cast<size_t>(piece);
  const std::vector<size_t> arriving = OfOthers(plan.sent[p]), leaving = OfOthers(plan.received[p]);
  return ValueOrThrow(group_->ExchangeRows(rows, {arriving, plan.sent_at[p]}, received,
                                           {leaving, plan.received_at[p]}, plan.typical_rows,
                                           "return", "wait_return"));
}

void ExpertAxis::CopyOwnThere(const Plan& plan, int piece, const at::Tensor& rows,
                              const at::Tensor& received) const {
  const PieceParts::Part own = PartsOf(plan, piece).own;
  if (own.rows == 0) return;
  received.narrow(0, own.begin, own.rows).copy_(rows.narrow(0, OwnSentAt(plan, piece), own.rows));
}

void ExpertAxis::CopyOwnBack(const Plan& plan, int piece, const at::Tensor& received,
                             const at::Tensor& rows) const {
  const PieceParts::Part own = PartsOf(plan, piece).own;
  if (own.rows == 0) return;
  rows.narrow(0, OwnSentAt(plan, piece), own.rows).copy_(received.narrow(0, own.begin, own.rows));
}

void ExpertAxis::Wait(Pending& pending) const { ThrowIfError(group_->Wait(pending)); }

}  // namespace weft::train
