// Transports that lie in libraries of their own, so that what these link is loaded only where it is
// wanted: libweft-ucx.so, libweft-verbs.so.
#ifndef WEFT_NET_TRANSPORT_MODULE_H_
#define WEFT_NET_TRANSPORT_MODULE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "net/transport.h"

namespace weft::net {

// A library's one entry: makes its transport. Program and library are of one build.
using TransportEntry = void (*)(const TransportOptions& options,
                                absl::StatusOr<std::unique_ptr<Transport>>* out);

// Where the lines go that such libraries log, those loaded now and later: at first to this
// program's or library's own Log(). Null: to stderr, which must be said before `sink` goes away;
// not while they are in use.
void SetModuleLog(LogSink sink);

// Any entry, with the errors of LoadTransport().
absl::StatusOr<void*> LoadModuleEntry(const char* library, const char* entry, const char* hint);

// The entry called `entry` of `library`. kUnavailable with `hint` where it cannot be loaded,
// kFailedPrecondition where it is of another build.
absl::StatusOr<TransportEntry> LoadTransport(const char* library, const char* entry,
                                             const char* hint);

// What LoadTransport() gave, at work. `name` is for errors: "UCX".
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(
    const absl::StatusOr<TransportEntry>& entry, const char* name, const TransportOptions& options);

}  // namespace weft::net

#endif  // WEFT_NET_TRANSPORT_MODULE_H_
