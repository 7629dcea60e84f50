// A store's client without sockets: its handshake, the numbers of its requests, and the requests
// without a reply. Bytes in, bytes out. Used by StoreClient, by relays, and by programs that drive
// many clients in one thread.
//
// After a lost connection, requests without a reply are sent again on the next one, with the same
// numbers, and the server executes each once. A server with another number is another store: all
// requests fail.
//
// Requests go with the first hello, which the server takes before them, in place of a round trip
// later: answers are trusted after the verdict only. (Requests are not secret to an attacker on the
// way; see net/handshake.h.) Over a Unix socket the kernel says who the other end is (the
// owner of the socket checks), so a hello frame takes the handshake's place.
//
// Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_CLIENT_STORE_CLIENT_CORE_H_
#define WEFT_COLLECTIVES_STORE_CLIENT_STORE_CLIENT_CORE_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collectives/store/protocol/ascending_map.h"
#include "collectives/store/protocol/store_hello.h"
#include "collectives/store/protocol/store_protocol.h"
#include "net/handshake.h"

namespace weft::collectives {

class StoreClientCore {
 public:
  enum class State : uint8_t {
    kAway,      // no connection
    kGreeting,  // the handshake is under way
    kReady,
    kGone,  // for ever; gone() says why
  };

  StoreClientCore(const net::JobSecret& secret, StoreHello hello);

  // ---- The connection

  void Connected(bool local);
  // The same, with a handshake that the owner has done: this is who it met. An error: see gone().
  absl::Status Adopt(absl::string_view server_id, absl::string_view server);
  void Lost();
  // An error: close the connection. Then either state() is kGone, or another connection may do.
  absl::Status Receive(absl::string_view bytes);
  // Descriptors that came with the bytes given to the next Receive(); owned from here on.
  void ReceiveFile(FileDescriptor file) { files_.push_back(std::move(file)); }
  // More than these without a reply that they belong to are an error.
  static constexpr size_t kFilesMax = 4;
  // All that waits fails, and every later request.
  void GiveUp(absl::Status why);

  // ---- Requests

  // Gives the request's number; its answer comes with TakeAnswers() under that number.
  uint64_t Call(StoreRequest&& request);
  // The server forgets the session; nothing may follow.
  void Goodbye();
  // This answer is not needed any more.
  void Forget(uint64_t id) {
    pending_.Erase(id);
    changing_.Erase(id);
  }

  struct Answer {
    uint64_t id;
    StoreResult result;
  };
  std::vector<Answer> TakeAnswers() { return std::exchange(answers_, {}); }
  // Into an empty vector, whose memory is used for the next ones.
  void TakeAnswers(std::vector<Answer>& into) { into.swap(answers_); }

  // ---- Output, in order

  bool HasOutput() const { return first_ < outgoing_.size(); }
  // Up to `parts_max` pieces of what is to be written next; valid until Wrote().
  size_t Gather(iovec* parts, size_t parts_max) const;
  void Wrote(size_t bytes);

  State state() const { return state_; }
  const absl::Status& gone() const { return gone_; }
  size_t pending() const { return pending_.size(); }
  // From the first kReady on.
  const std::string& server_id() const { return server_id_; }
  const std::string& server() const { return server_; }  // "weft-run pid 123"
  const StoreHello& hello() const { return hello_; }
  // See StoreFrameReader.
  void set_sink(StoreFrameReader::Sink sink) { sink_ = std::move(sink); }
  int64_t messages_sent() const { return messages_sent_; }
  int64_t messages_received() const { return messages_received_; }

 private:
  // A request as it goes out: a short one is copied to what is to be written, a long one shared.
  struct Frame {
    std::string text;
    std::shared_ptr<const std::string> shared;
  };
  static Frame MakeFrame(const StoreRequest& request);
  void Push(const Frame& frame);
  void PushText(absl::string_view text);

  absl::Status FeedHandshake(absl::string_view* bytes);
  absl::Status Meet(absl::string_view id, absl::string_view description);
  absl::Status TakeReply(StoreFrame& frame);
  void SendPending();
  void ClearOutput();

  const net::JobSecret secret_;
  const StoreHello hello_;
  State state_ = State::kAway;
  absl::Status gone_;
  std::optional<net::ConnectorHandshake> handshake_;
  bool early_ = false;  // requests go out before the verdict
  std::string server_id_;
  std::string server_;
  uint64_t next_id_ = 1;
  AscendingMap<Frame> pending_;
  AscendingMap<bool> changing_;  // of pending_, those whose replies the server retains
  std::vector<Frame> outgoing_;
  size_t first_ = 0;    // of outgoing_ that is not written
  size_t written_ = 0;  // of that
  StoreFrameReader reader_{kStoreReplyBytesMax};
  StoreFrameReader::Sink sink_;
  std::vector<FileDescriptor> files_;  // no more than kFilesMax
  std::vector<Answer> answers_;
  int64_t messages_sent_ = 0;
  int64_t messages_received_ = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_CLIENT_STORE_CLIENT_CORE_H_
