// For long-lived buffers of the caller's own that many operations use.
#ifndef WEFT_COLLECTIVES_KEEP_REGISTERED_H_
#define WEFT_COLLECTIVES_KEEP_REGISTERED_H_

#include <cstddef>
#include <memory>

#include "collectives/endpoint.h"

namespace weft::collectives {

// Memory that is sent or received over verbs is registered for each operation, unless the endpoint
// gave it (Endpoint::Allocate) or the caller keeps it: with the result, [data, data + bytes) is
// registered once, by the first operation that uses it over verbs. The caller keeps it mapped where
// it is until the result is gone, and lets no operation on it be under way then. The last owner of
// the result waits for a turn of the endpoint; it may outlive the endpoint. What overlaps memory
// that is kept already is registered for each operation, as if it were not kept. Thread-safe.
std::shared_ptr<void> KeepRegistered(const std::shared_ptr<Endpoint>& endpoint, void* data,
                                     size_t bytes);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_KEEP_REGISTERED_H_
