#include "topology/ecmp/five_tuple.h"

#include <arpa/inet.h>

#include "absl/strings/str_cat.h"

namespace weft::topology {

absl::StatusOr<IpAddress> IpAddress::Parse(absl::string_view text) {
  IpAddress out;
  out.v6 = text.find(':') != absl::string_view::npos;
  if (inet_pton(out.v6 ? AF_INET6 : AF_INET, std::string(text).c_str(), out.bytes.data()) == 1) {
    return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no IP address; right are 10.0.0.1 and fd00::1"));
}

std::string IpAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(v6 ? AF_INET6 : AF_INET, bytes.data(), text, sizeof(text));
  return text;
}

}  // namespace weft::topology
