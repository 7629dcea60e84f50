#include "tools/driver/state_folder.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/store/server/store_core.h"
#include "collectives/store/server/store_journal.h"

namespace weft::driver {

absl::StatusOr<std::optional<DriverRecord>> RecordInFolder(const std::string& folder,
                                                           const std::string& job) {
  using collectives::StoreRecord;
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<collectives::StoreJournal> journal,
                        collectives::StoreJournal::Open(folder));
  collectives::StoreCoreOptions options;
  options.journal = true;
  collectives::StoreCore core(options);
  const absl::Time now = SystemClock().Now();
  WEFT_RETURN_IF_ERROR(
      journal->Read([&](const StoreRecord& record) { return core.Replay(record, now); }));
  std::optional<std::string> text;
  WEFT_RETURN_IF_ERROR(collectives::ReadRecords(core.Snapshot(), [&](StoreRecord record) {
                         const bool is_it = record.kind == StoreRecord::Kind::kValue &&
                                            record.job == job && record.key == kStateKey;
                         if (is_it) text = std::move(record.text);
                         return absl::OkStatus();
                       }).status());
  if (!text.has_value()) return std::nullopt;
  absl::StatusOr<DriverRecord> record = ParseDriverRecord(*text);
  if (record.ok()) return *std::move(record);
  return Annotate(record.status(), absl::StrCat(folder, "/store.journal, key ", kStateKey));
}

absl::Status EmptyFolder(const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<collectives::StoreJournal> journal,
                        collectives::StoreJournal::Open(folder));
  return journal->Invalidate();
}

std::string OverText(const recovery::JobState& job) {
  const recovery::Outcome outcome = job.outcome.value_or(recovery::Outcome{});
  return absl::StrCat("is over since ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", outcome.time, absl::UTCTimeZone()),
                      ", with status ", outcome.exit_status, ": ", outcome.reason);
}

}  // namespace weft::driver
