// The ranks that share the experts of a mixture-of-experts layer (expert parallelism; Lepikhin et
// al., "GShard", 2021; Fedus et al., "Switch transformers", 2022): each holds some of the experts,
// and the rows of every rank go to the ranks of their experts and come back.
//
// The group is the tensor ranks times the expert ranks: between the matrix products a tensor rank
// holds rows of its own, so that all of these ranks send different rows, and experts are not cut.
// With E experts and R ranks, rank r holds experts [r E / R, (r + 1) E / R).
//
// Rows go in pieces: a piece is a part of the rows of the i-th expert of every rank, so that one
// piece is multiplied while the next arrives and the one before goes back. Within a piece the rows
// of a rank are behind those of the ranks before it. A rank copies the rows that it has for its own
// experts, so that they are there at once, and are multiplied while others' are awaited, or while
// the last of these go back. Used by one thread. The errors of collectives are thrown as
// StatusError.
#ifndef WEFT_TRAINER_MODEL_EXPERT_AXIS_H_
#define WEFT_TRAINER_MODEL_EXPERT_AXIS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "trainer/groups/group.h"

namespace weft::train {

class ExpertAxis {
 public:
  // `group` outlives this object. `pieces`: in how many pieces all rows go, at least. `replicas`:
  // data replicas among the ranks of the group. Gradients are means over the replicas; those of
  // experts add up what all replicas here send, and are divided by their number.
  ExpertAxis(Group* group, int64_t experts, int pieces, int replicas = 1);

  double gradient_scale() const { return 1.0 / replicas_; }

  int64_t experts() const { return experts_; }
  int64_t experts_here() const { return experts_ / group_->size(); }
  int64_t first_expert() const { return group_->rank() * experts_here(); }
  int pieces() const { return static_cast<int>(experts_here()) * pieces_of_expert_; }
  int PieceOf(int64_t expert_here, int part) const {
    return static_cast<int>(expert_here) * pieces_of_expert_ + part;
  }
  int pieces_of_expert() const { return pieces_of_expert_; }

  // Where the rows of one exchange lie at both ends.
  struct Plan {
    // Rows that this rank sends, in the order of experts: by piece and rank.
    std::vector<std::vector<size_t>> sent, sent_at;
    // Rows that it receives, in the order of pieces: by piece and rank.
    std::vector<std::vector<size_t>> received, received_at;
    int64_t rows_sent = 0, rows_received = 0;
    // Rows from one rank to one other in a piece, on average over all; the same on every rank.
    int64_t typical_rows = 0;
    int64_t PieceRows(int piece) const;
    int64_t PieceBegin(int piece) const {
      return static_cast<int64_t>(received_at[static_cast<size_t>(piece)][0]);
    }
  };
  // Rows of a piece, as received: those of this rank, and those before and behind them.
  struct PieceParts {
    struct Part {
      int64_t begin = 0, rows = 0;
    };
    Part before, own, behind;
  };
  PieceParts PartsOf(const Plan& plan, int piece) const;
  // `counts`: int64 [experts], this rank's rows for each expert. Returns int64 [ranks, experts
  // here + 1]: the rows of every rank for the experts here, and all rows that it sends.
  at::Tensor ExchangeCounts(const at::Tensor& counts) const;
  Plan MakePlan(const at::Tensor& counts, const at::Tensor& counts_here) const;

  // Rows of one piece to the ranks of their experts, without this rank's own: from `rows` [rows
  // sent, width] into `received` [rows received, width].
  Pending StartDispatch(const Plan& plan, int piece, const at::Tensor& rows,
                        const at::Tensor& received) const;
  // And back.
  Pending StartReturn(const Plan& plan, int piece, const at::Tensor& received,
                      const at::Tensor& rows) const;
  void Wait(Pending& pending) const;
  // This rank's own rows of one piece, the same two ways: copied when the call returns.
  void CopyOwnThere(const Plan& plan, int piece, const at::Tensor& rows,
                    const at::Tensor& received) const;
  void CopyOwnBack(const Plan& plan, int piece, const at::Tensor& received,
                   const at::Tensor& rows) const;

 private:
  // `counts` by rank, without this rank's own.
  std::vector<size_t> OfOthers(std::vector<size_t> counts) const;
  int64_t OwnSentAt(const Plan& plan, int piece) const {
    return static_cast<int64_t>(
        plan.sent_at[static_cast<size_t>(piece)][static_cast<size_t>(group_->rank())]);
  }

  Group* const group_;
  const int64_t experts_;
  const int pieces_of_expert_;
  const int replicas_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_EXPERT_AXIS_H_
