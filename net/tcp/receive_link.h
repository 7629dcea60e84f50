// The accepting end of a link of every transport but shm: a session, matching, and what carries the
// data where the session's sockets do not.
#ifndef WEFT_NET_TCP_RECEIVE_LINK_H_
#define WEFT_NET_TCP_RECEIVE_LINK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/tcp/data_path.h"
#include "net/tcp/link_session.h"
#include "net/tcp/receive_matching.h"
#include "net/tcp/session_link.h"

namespace weft::net {

// Makes what carries a link's data; null: its sockets do.
using MakeReceiveDataPath =
    std::function<std::unique_ptr<ReceiveDataPath>(LinkSession&, ReceiveMatching&)>;

class SessionReceiveLink final : public SessionLink<ReceiveLink, ReceiveMatching> {
 public:
  // Told when it is destroyed, so that the transport does not look for it any more.
  using OnDestroyed = std::function<void(SessionReceiveLink*)>;
  SessionReceiveLink(TcpContext& context, Rank peer, OnDestroyed on_destroyed,
                     const MakeReceiveDataPath& make_path = nullptr);
  ~SessionReceiveLink() override;
  // Before Start(): sockets that are lost may be replaced, where the context has a book.
  void UseResumption(const LinkParameters& parameters, const std::vector<FileDescriptor>& sockets);
  void Start(std::vector<FileDescriptor> sockets);

  Posted PostReceive(MessageKey key, const ReceiveTarget& target, Request* request) override;
  void DropUnwanted() override {
    if (path_ != nullptr) path_->DropUnwanted();
  }
  void Flush(const RegionView& where, Request* request) override;

 private:
  OnDestroyed on_destroyed_;
  std::unique_ptr<ReceiveDataPath> path_;  // after what it uses
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_RECEIVE_LINK_H_
