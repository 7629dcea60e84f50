// What every transport over rails does when it is opened: reads its settings, opens the devices,
// says what it chose, watches them.
#ifndef WEFT_NET_VERBS_OPENING_H_
#define WEFT_NET_VERBS_OPENING_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/epoll.h"
#include "base/poller.h"
#include "net/tcp/socket.h"
#include "net/verbs/entry.h"
#include "net/verbs/rails.h"

namespace weft::net {

// `name` of the transport and `pairs` of a link, for the log.
absl::StatusOr<std::shared_ptr<Rails>> OpenRails(std::unique_ptr<Nic> nic,
                                                 const VerbsOptions& options,
                                                 const PairLayout& layout, absl::string_view name,
                                                 int pairs);

// What both ends must have alike.
VerbsTerms TermsOf(Rails& rails);

// Asynchronous events of rails, through a poller; and a descriptor that is readable when the poller
// or a device has something (Rails::Arm()).
class RailWatch {
 public:
  static absl::StatusOr<std::unique_ptr<RailWatch>> Open(Poller& poller, Rails& rails);
  ~RailWatch();
  int fd() const { return wait_.fd(); }

 private:
  class EventReader;
  RailWatch();
  std::vector<std::unique_ptr<EventReader>> events_;
  Epoll wait_;  // over the poller's and the completion channels'
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_OPENING_H_
