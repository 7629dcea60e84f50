#include "net/transport.h"

#include "absl/strings/str_cat.h"
#include "net/multipath/udp/multipath_transport.h"
#include "net/shm/shm_transport.h"
#include "net/tcp/tcp_transport.h"
#include "net/ucx/ucx.h"
#include "net/verbs/verbs.h"

namespace weft::net {

const char* ToString(TransportKind kind) {
  switch (kind) {
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kTcp:
      return "tcp";
    case TransportKind::kUcx:
      return "ucx";
    case TransportKind::kMultipath:
      return "multipath";
    case TransportKind::kVerbs:
      return "verbs";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(TransportKind kind,
                                                           const TransportOptions& options) {
  if (options.secret == JobSecret{}) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", ToString(kind), " transport without a secret would serve ",
                     "unauthenticated peers; give it the job's (WEFT_JOB_SECRET)"));
  }
  switch (kind) {
    case TransportKind::kShm:
      return ShmTransport::Create(options);
    case TransportKind::kTcp:
      return TcpTransport::Create(options);
    case TransportKind::kUcx:
      return CreateUcxTransport(options);
    case TransportKind::kMultipath:
      return options.settings.Text("multipath.wire") == "udp"
                 ? multipath::MultipathTransport::Create(options)
                 : CreateQueuePairTransport(options);
    case TransportKind::kVerbs:
      return CreateVerbsTransport(options);
  }
  return absl::InvalidArgumentError("no such transport");
}

}  // namespace weft::net
