#include "net/verbs/verbs.h"

#include <dlfcn.h>

#include "base/module.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr char kLibraryName[] = "libweft-verbs.so";
constexpr char kHint[] = "It is built where libibverbs-dev is installed, and needs libibverbs1";

absl::StatusOr<VerbsEntry> Load() {
  WEFT_ASSIGN_OR_RETURN(void* handle, LoadModule(kLibraryName, kHint));
  auto entry = reinterpret_cast<VerbsEntry>(dlsym(handle, kVerbsEntry));
  if (entry != nullptr) return entry;
  return absl::FailedPreconditionError(
      "libweft-verbs.so is of another build than this program: build both from one source");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options) {
  static const absl::StatusOr<VerbsEntry>* entry = new absl::StatusOr<VerbsEntry>(Load());
  if (!entry->ok()) return Annotate(entry->status(), "no verbs transport");
  absl::StatusOr<std::unique_ptr<Transport>> transport = absl::UnknownError("not made");
  (**entry)(options, &transport);
  return transport;
}

}  // namespace weft::net
