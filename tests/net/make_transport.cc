// The transports that tests get, unless a test program brings its own.
#include "tests/net/harness.h"

namespace weft::net {

absl::StatusOr<std::unique_ptr<Transport>> MakeTestTransport(TransportKind kind,
                                                             const TransportOptions& options) {
  return CreateTransport(kind, options);
}

}  // namespace weft::net
