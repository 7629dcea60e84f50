// The plugin's log: lines go to the logger that NCCL hands to init, so that they obey NCCL_DEBUG,
// NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE; before that, nowhere. Lines that net/ logs through
// base/log.h go there too. Thread-safe.
#ifndef WEFT_PLUGINS_NCCL_LOG_H_
#define WEFT_PLUGINS_NCCL_LOG_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "plugins/nccl/abi/common.h"

namespace weft::nccl {

// From now on; null is ignored. The function stays valid until the library is unloaded.
void SetLogFunction(abi::LogFunction log);

// Lines begin with "NET/Weft : ".
void LogInfo(absl::string_view text);
void LogWarning(absl::string_view text);

// Logs a failed call, once, where it leaves the plugin, and says what NCCL gets: an error of the
// caller's, of the settings (kInvalidUsage), of the peer or the network (kRemoteError), or of this
// host (kSystemError).
abi::Result Fail(absl::string_view call, const absl::Status& status);
// The same of what NCCL asks for as a matter of course and does without: a line at INFO.
abi::Result Decline(absl::string_view call, const absl::Status& status);

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_LOG_H_
