// What the statuses of failed work requests mean to people.
#ifndef WEFT_NET_VERBS_EXPLAIN_H_
#define WEFT_NET_VERBS_EXPLAIN_H_

#include <string>

#include "net/verbs/nic.h"
#include "net/verbs/options.h"

namespace weft::net {

// "transport retry counter exceeded (error 12)".
std::string StatusText(NicStatus status);

// What mostly is behind it, and what to look at; one or two sentences.
std::string LikelyCause(NicStatus status, const VerbsOptions& options);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_EXPLAIN_H_
