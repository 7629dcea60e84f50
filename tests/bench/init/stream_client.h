// A Client of somebody else's protocol: dials without blocking, collects what is to be written,
// hands what is read to the protocol. A lost connection is not dialled again: neither Redis nor
// TCPStore could be told what had been done already.
#ifndef WEFT_TESTS_BENCH_INIT_STREAM_CLIENT_H_
#define WEFT_TESTS_BENCH_INIT_STREAM_CLIENT_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/file_descriptor.h"
#include "base/poller.h"
#include "tools/init/client.h"

namespace weft::init {

class StreamClient : public Client, private PollHandler {
 public:
  explicit StreamClient(const ClientSetup& setup) : PollHandler(*setup.poller), setup_(setup) {}
  ~StreamClient() override;

  void Start(std::function<void(const absl::Status&)> connected) override;
  void Exchange(const std::string& key, int rank, int size, const collectives::RankSet& wanted,
                Done done) override;  // kUnimplemented
  int64_t sent() const override { return sent_; }
  int64_t received() const override { return received_; }

 protected:
  // The connection stands: writes the greeting.
  virtual void Greet() = 0;
  // Takes what came; calls what is done.
  virtual absl::Status Consume(absl::string_view bytes) = 0;
  // The connection is lost: fails what waits.
  virtual void Abandon(const absl::Status& why) = 0;

  // The greeting was answered.
  void Connected();
  // Adds to what goes out with the next write: one, when all that came was consumed.
  void Write(absl::string_view bytes);
  const ClientSetup& setup() const { return setup_; }
  int64_t sent_ = 0;
  int64_t received_ = 0;

 private:
  void OnEvents(uint32_t events, absl::Time now) override;
  absl::Status Open();
  absl::Status FinishConnect();
  absl::Status Read();
  absl::Status Flush();
  void Drop(const absl::Status& why);

  const ClientSetup setup_;
  std::function<void(const absl::Status&)> connected_;
  FileDescriptor socket_;
  bool connecting_ = false;
  bool busy_ = false;  // within OnEvents(), which flushes at its end
  uint32_t watched_ = 0;
  std::string out_;
  size_t written_ = 0;  // of it
};

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_STREAM_CLIENT_H_
