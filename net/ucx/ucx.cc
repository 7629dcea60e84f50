#include "net/ucx/ucx.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/module.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr char kLibraryName[] = "libweft-ucx.so";
constexpr char kHint[] = "It is built where libucx-dev is installed, and needs libucx0 to load";

absl::StatusOr<UcxEntry> Load() {
  // UCX reads these once, when it is loaded. Its warnings would go to stdout, where programs of
  // ours write what other programs read; and a crash is the program's own matter.
  setenv("UCX_LOG_FILE", "stderr", 0);
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  WEFT_ASSIGN_OR_RETURN(void* handle, LoadModule(kLibraryName, kHint));
  auto entry = reinterpret_cast<UcxEntry>(dlsym(handle, kUcxEntry));
  if (entry != nullptr) return entry;
  return absl::FailedPreconditionError(
      "libweft-ucx.so is of another build than this program: build both from one source");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportOptions& options) {
  static const absl::StatusOr<UcxEntry>* entry = new absl::StatusOr<UcxEntry>(Load());
  if (!entry->ok()) return Annotate(entry->status(), "no UCX transport");
  absl::StatusOr<std::unique_ptr<Transport>> transport = absl::UnknownError("not made");
  (**entry)(options, &transport);
  return transport;
}

}  // namespace weft::net
