// Answers the requests of a store's clients: the table itself (store_table.h), or a relay's client
// of the root (store_relay_table.h). StoreCore calls either. No sockets, clocks or threads.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_BACKEND_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_BACKEND_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/store/protocol/store_protocol.h"

namespace weft::collectives {

// Who asked: the owner's number for a client, and the client's for its request.
struct StoreTicket {
  uint64_t session = 0;
  uint64_t request = 0;
  auto operator<=>(const StoreTicket&) const = default;
};

struct StoreAnswer {
  StoreTicket ticket;
  StoreOp op = StoreOp::kKeyCount;
  StoreReply reply;
};

class StoreBackend {
 public:
  virtual ~StoreBackend() = default;
  // `request` has passed DecodeRequest; what is needed of it later is taken from it. Its answer,
  // and others that it brings about, are in the next TakeAnswers(), or in a later one if it waits.
  virtual void Execute(StoreTicket ticket, StoreRequest&& request, absl::Time now) = 0;
  // This answer is not needed any more. A rank's arrival at a barrier still counts.
  virtual void Forget(StoreTicket ticket) = 0;
  // A request that waits ends with this error; ranks that had arrived with it have not.
  virtual void Expel(StoreTicket ticket, absl::Status why) = 0;
  // Answers what has waited until its deadline.
  virtual void Advance(absl::Time now) = 0;
  virtual absl::Time deadline() const = 0;  // when Advance() has something to do; or InfiniteFuture
  // Into an empty vector, whose memory is used for the next ones.
  virtual void TakeAnswers(std::vector<StoreAnswer>& into) = 0;
  virtual int64_t keys() const = 0;
  virtual int64_t waiting() const = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_BACKEND_H_
