#include "tools/driver/driver_absence.h"

#include "absl/strings/str_cat.h"

namespace weft::driver {

DriverAbsence::Answer DriverAbsence::Look(absl::Time now, absl::Time contact, absl::Duration lease,
                                          bool has_ranks) {
  Answer answer;
  const bool is_away = now - contact > lease;
  const bool is_cut = is_away && !is_alone_ && fence_.MustEnd(now, contact, lease);
  if (is_cut && has_ranks && !cut_) {
    answer.must_end = true;
    answer.text =
        absl::StrCat("the store at ", store_, " was not reached for ", absl::FormatDuration(lease),
                     " (the job's lease), and these ranks do not go on with those of other "
                     "nodes: ending all ranks, which others may have replaced");
  }
  if (is_away && !is_cut && has_ranks && !away_) {
    answer.text = absl::StrCat(
        "the driver at ", store_, " was not reached for ", absl::FormatDuration(lease),
        " (the job's lease); the ranks go on, ",
        is_alone_ ? "for they are all of the job, and the driver is to be on this host"
                  : "for they do steps with those of other nodes, so that none was replaced",
        "; it may take ", absl::FormatDuration(patience_), " to come back (--store-patience)");
  }
  away_ = is_away;
  cut_ = is_cut;
  return answer;
}

}  // namespace weft::driver
