// The accepted links whose lost sockets may be replaced. The listener checks here whether a new
// socket may replace one, and leaves it here for the link. The link's id, its peer's rank and the
// job's secret must match, and each attempt must have a higher epoch than all before, so that no
// peer takes over another's stream and no abandoned attempt arrives late.
//
// Thread-safe: a listener and its links may be driven by different threads.
#ifndef WEFT_NET_TCP_RESUME_BOOK_H_
#define WEFT_NET_TCP_RESUME_BOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "net/tcp/connector.h"
#include "net/tcp/socket.h"

namespace weft::net {

class ResumeBook {
 public:
  struct Arrival {
    uint16_t index = 0;
    uint32_t epoch = 0;
    FileDescriptor socket;
  };

  // `wake` is called by the thread that drives the listener, once there is something to Take().
  // False: another link has this id, so that this one cannot be resumed.
  bool Enter(uint64_t link_id, Rank peer, uint16_t sockets, std::function<void()> wake);
  void Leave(uint64_t link_id);  // `wake` is not called any more
  std::vector<Arrival> Take(uint64_t link_id);

  // For the listener: whether this socket may replace one. Errors: kNotFound, kFailedPrecondition.
  absl::Status Check(Rank peer, const LinkParameters& parameters) const;
  // Called once the socket's handshake is over. Closes a socket that its link no longer needs.
  void Deliver(Rank peer, const LinkParameters& parameters, FileDescriptor socket);

 private:
  struct Entry {
    Rank peer;
    std::vector<uint32_t> epochs;  // the last, by index
    std::function<void()> wake;
    std::vector<Arrival> arrivals;
  };
  absl::Status CheckLocked(Rank peer, const LinkParameters& parameters) const;

  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> links_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_RESUME_BOOK_H_
