// Makes the sockets of one link: connects them all, does the handshake on each, and starts again
// with a growing pause while the peer is not up yet, until transport.connect_timeout. Where a dial
// is not answered at all, its path may be dead: after half a second (then 1, 2, 4 s) all are dialed
// again, those that nobody answered from another port, and on another way where ways are planned.
//
// Tried again: errors that a peer causes which starts later, restarts or is short of descriptors
// (refused, reset, unreachable, closed before a verdict). Final: an invalid address, no descriptors
// here, and every refusal with a reason.
//
// It also replaces a lost socket of an established link (Resume), with each attempt from another
// source port, so that it leaves a dead path. There a closed port is final as well: the process
// that listened has died.
#ifndef WEFT_NET_TCP_CONNECTOR_H_
#define WEFT_NET_TCP_CONNECTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "base/poller.h"
#include "net/handshake.h"
#include "net/tcp/socket.h"
#include "topology/plan/connection_plan.h"

namespace weft::net {

struct TcpContext;

// What a Hello says of the link; 28 bytes on the wire, little-endian.
struct LinkParameters {
  uint64_t link_id = 0;  // random: the same on all sockets of one link
  uint16_t index = 0;    // of this socket
  uint16_t count = 0;    // of the link's sockets
  uint32_t epoch = 0;    // 0: a new link; else: replaces this socket, and those of lower epochs
  // Where the connector's process itself listens, at the address that it connects from, as long as
  // it lives; 0: nowhere.
  uint16_t life_port = 0;
  uint64_t rate = 0;  // bytes a second that a plan gives this socket's flow; 0: not planned
  std::string Encode() const;
  static constexpr size_t kBytes = 28;
  static absl::StatusOr<LinkParameters> Decode(absl::string_view bytes);
};

class ConnectorOwner {
 public:
  virtual ~ConnectorOwner() = default;
  // `received[i]` came on sockets[i] behind the handshake. Called once; the connector is of no use
  // afterwards.
  virtual void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                           absl::Time now) = 0;
  virtual void OnConnectFailed(const absl::Status& why, absl::Time now) = 0;
};

class Connector final : public PollHandler {
 public:
  Connector(TcpContext& context, const ConnectorIdentity& identity, Rank peer,
            ConnectorOwner& owner);
  ~Connector() override;
  void Start(absl::string_view address, absl::Time now);
  // One socket for a link that stands: `parameters` but for the epoch, which each attempt raises.
  // Tried until `give_up`; while the peer's kernel has accepted and its process does not answer, it
  // is busy or stopped, and waited for until `patience`.
  // With `way` it takes that way, where ways are planned.
  void Resume(absl::string_view address, const LinkParameters& parameters, absl::Time give_up,
              absl::Time patience, absl::Time now, const topology::PathWay* way = nullptr);
  // The owner is not called any more.
  void Cancel();
  // Parameters of the last attempt.
  const LinkParameters& parameters() const { return parameters_; }
  int attempts() const { return attempts_; }
  // [socket] that were planned for, and that are taken; empty: none were.
  const std::vector<topology::PathWay>& planned_ways() const { return planned_ways_; }
  const std::vector<topology::PathWay>& ways() const { return ways_; }

  bool OnTurn(absl::Time now) override;
  void OnDeadline(absl::Time now) override;

 private:
  class Dial;
  void Attempt(absl::Time now);
  void StopAttempt();
  void OnDialDone(absl::Time now);
  void OnDialFailed(const absl::Status& why, bool again, absl::Time now);
  absl::Status PlanWays();
  void LeaveSilentWays();
  void NoteFailedWays(absl::Time now) const;
  SocketAddress SourceOf(size_t index) const;
  absl::Status OutOfTime() const;
  void Fail(const absl::Status& why, absl::Time now);

  TcpContext& context_;
  const ConnectorIdentity identity_;
  Rank peer_;
  ConnectorOwner& owner_;
  std::string address_text_;
  SocketAddress address_;
  absl::Status start_status_;
  bool resumes_ = false;
  LinkParameters parameters_;
  std::vector<topology::PathWay> planned_ways_, ways_;
  std::vector<std::vector<topology::PathWay>> left_;  // [socket] ways that nobody answered on
  std::vector<std::unique_ptr<Dial>> dials_;
  size_t sockets_ = 0;  // of the link
  size_t dials_done_ = 0;
  int attempts_ = 0;
  absl::Duration pause_;
  absl::Duration patience_of_dials_;
  absl::Time give_up_, patience_;
  absl::Status last_failure_;
  bool finished_ = false;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_CONNECTOR_H_
