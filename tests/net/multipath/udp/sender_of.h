// The sender of a multipath link, whose statistics tests and measurements read.
#ifndef WEFT_TESTS_NET_MULTIPATH_UDP_SENDER_OF_H_
#define WEFT_TESTS_NET_MULTIPATH_UDP_SENDER_OF_H_

#include "net/multipath/udp/data_path.h"
#include "net/tcp/send_link.h"

namespace weft::net::multipath {

// Null before it is started, and for links of other transports.
inline const Sender* SenderOf(SendLink& link) {
  auto* session_link = dynamic_cast<SessionSendLink*>(&link);
  if (session_link == nullptr) return nullptr;
  auto* path = dynamic_cast<MultipathSendDataPath*>(session_link->data_path());
  return path != nullptr ? path->sender() : nullptr;
}

}  // namespace weft::net::multipath

#endif  // WEFT_TESTS_NET_MULTIPATH_UDP_SENDER_OF_H_
