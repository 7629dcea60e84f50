// The connecting end of a link of every transport but shm: a session, matching, and what carries
// the data where the session's sockets do not.
#ifndef WEFT_NET_TCP_SEND_LINK_H_
#define WEFT_NET_TCP_SEND_LINK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/tcp/connector.h"
#include "net/tcp/data_path.h"
#include "net/tcp/link_session.h"
#include "net/tcp/send_matching.h"
#include "net/tcp/session_link.h"

namespace weft::net {

// Makes what carries a link's data; null: its sockets do.
using MakeSendDataPath = std::function<std::unique_ptr<SendDataPath>(LinkSession&, SendMatching&)>;

class SessionSendLink final : public SessionLink<SendLink, SendMatching>, public ConnectorOwner {
 public:
  SessionSendLink(TcpContext& context, Rank peer, const MakeSendDataPath& make_path = nullptr);
  ~SessionSendLink() override;
  // Before Start(): the connector is not the transport's own rank.
  void UseIdentity(const ConnectorIdentity& identity);
  void Start(absl::string_view address, absl::Time now);
  SendDataPath* data_path() const { return path_.get(); }  // null: its sockets

  Posted PostSend(MessageKey key, const SendSource& source, Request* request) override;
  bool connected() const override { return session_.attached(); }

 private:
  void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                   absl::Time now) override;
  void OnConnectFailed(const absl::Status& why, absl::Time now) override;

  std::optional<ConnectorIdentity> identity_;
  std::string address_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<SendDataPath> path_;  // after what it uses
  const bool path_takes_posts_;
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_SEND_LINK_H_
