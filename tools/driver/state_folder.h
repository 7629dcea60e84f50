// The state folder of a driver (weft-driver --state-dir) while nobody serves it: what the journal
// of the job's store holds of the driver's record. To be asked before the store is served, since
// executors that find a job there that is over end with it.
#ifndef WEFT_TOOLS_DRIVER_STATE_FOLDER_H_
#define WEFT_TOOLS_DRIVER_STATE_FOLDER_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/driver/records.h"

namespace weft::driver {

// Nullopt: the folder has none of this job. kAlreadyExists: another process serves it. Errors of
// ParseDriverRecord() name the journal.
absl::StatusOr<std::optional<DriverRecord>> RecordInFolder(const std::string& folder,
                                                           const std::string& job);
// Deletes the journal: the process that serves the folder next begins with an empty store.
absl::Status EmptyFolder(const std::string& folder);

// "is over since 2026-11-27 10:00:00 UTC, with status 0: all ranks are done"
std::string OverText(const recovery::JobState& job);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_STATE_FOLDER_H_
