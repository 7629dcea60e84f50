#include "net/transport_module.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/module.h"
#include "base/status.h"

namespace weft::net {
namespace {

using SetSink = void (*)(LogSink sink);

struct Loaded {
  std::mutex mutex;
  std::vector<SetSink> modules;
  LogSink sink = &Log;
};
Loaded& AllLoaded() {
  static Loaded loaded;
  return loaded;
}

void Register(void* handle) {
  auto set_sink = reinterpret_cast<SetSink>(dlsym(handle, "weft_module_log_2"));
  if (set_sink == nullptr) return;
  Loaded& loaded = AllLoaded();
  std::lock_guard lock(loaded.mutex);
  if (std::find(loaded.modules.begin(), loaded.modules.end(), set_sink) != loaded.modules.end()) {
    return;
  }
  loaded.modules.push_back(set_sink);
  set_sink(loaded.sink);
}

}  // namespace

void SetModuleLog(LogSink sink) {
  Loaded& loaded = AllLoaded();
  std::lock_guard lock(loaded.mutex);
  loaded.sink = sink;
  for (SetSink set_sink : loaded.modules) set_sink(sink);
}

absl::StatusOr<void*> LoadModuleEntry(const char* library, const char* entry, const char* hint) {
  WEFT_ASSIGN_OR_RETURN(void* handle, LoadModule(library, hint));
  void* found = dlsym(handle, entry);
  if (found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        library, " is of another build than this program: build both from one source"));
  }
  Register(handle);
  return found;
}

absl::StatusOr<TransportEntry> LoadTransport(const char* library, const char* entry,
                                             const char* hint) {
  WEFT_ASSIGN_OR_RETURN(void* found, LoadModuleEntry(library, entry, hint));
  return reinterpret_cast<TransportEntry>(found);
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(
    const absl::StatusOr<TransportEntry>& entry, const char* name,
    const TransportOptions& options) {
  if (!entry.ok()) return Annotate(entry.status(), absl::StrCat("no ", name, " transport"));
  absl::StatusOr<std::unique_ptr<Transport>> transport = absl::UnknownError("not made");
  (*entry)(options, &transport);
  return transport;
}

}  // namespace weft::net
