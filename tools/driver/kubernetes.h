// What a driver asks of a Kubernetes: the pod of an evicted host is deleted and its node cordoned,
// so that the pod's owner (a JobSet, a PyTorchJob) puts another one elsewhere. A pod is an
// executor, whose host's name is the pod's.
//
// Calls are those of the API's version 1 (core), over TLS by curl, which has to be there; the
// account is the pod's own (kubernetes.io, "Accessing the Kubernetes API from a Pod"). It needs get
// and delete of pods, and patch of nodes.
#ifndef WEFT_TOOLS_DRIVER_KUBERNETES_H_
#define WEFT_TOOLS_DRIVER_KUBERNETES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::driver {

inline constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";

// Whether Kubernetes takes `name` for a pod or node: labels between dots, each of a-z, 0-9 and '-'
// with no '-' at its ends, 253 characters in all (a DNS subdomain, RFC 1123). Such a name is one
// part of a URL's path as it is.
bool IsDnsSubdomain(absl::string_view name);

class Kubernetes {
 public:
  // `account`: a folder with the files token, ca.crt and namespace. The API's address is
  // KUBERNETES_SERVICE_HOST and _PORT of the environment. kFailedPrecondition, with what is
  // missing.
  static absl::StatusOr<Kubernetes> Find(const std::string& account = kServiceAccount);

  // May be done twice: a pod that is gone is none to be deleted. Blocks for a minute at most.
  absl::Status Evict(const std::string& pod) const;

 private:
  Kubernetes() = default;
  // The answer's body; kNotFound: status 404.
  absl::StatusOr<std::string> Call(const std::string& method, const std::string& path,
                                   const std::string& body = "") const;

  std::string account_, url_, namespace_;
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_KUBERNETES_H_
