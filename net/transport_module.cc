#include "net/transport_module.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "base/module.h"
#include "base/status.h"

namespace weft::net {

absl::StatusOr<TransportEntry> LoadTransport(const char* library, const char* entry,
                                             const char* hint) {
  WEFT_ASSIGN_OR_RETURN(void* handle, LoadModule(library, hint));
  auto found = reinterpret_cast<TransportEntry>(dlsym(handle, entry));
  if (found != nullptr) return found;
  return absl::FailedPreconditionError(
      absl::StrCat(library, " is of another build than this program: build both from one source"));
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
