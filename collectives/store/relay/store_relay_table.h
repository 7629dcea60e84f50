// A relay's access to the root: its clients' requests go to the next store up, by one client
// (store_client_core.h) that speaks for all. Arrivals of several ranks at one barrier, all-gather,
// gather or exchange go up as one message and come back as one, whose large values lie in a memory
// file that all ranks of the host map; for an exchange it holds all that any of them requests. A
// relay above others gives each its own part. All other requests are passed on unchanged, many to a
// write: a relay keeps no copies of values, which could be old.
//
// No sockets, clocks or threads. Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_TABLE_H_
#define WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "collectives/store/client/store_client_core.h"
#include "collectives/store/server/store_backend.h"

namespace weft::collectives {

struct StoreRelayTableOptions {
  std::string name;      // for messages: "relay pid 123 on node7"
  int32_t world = 0;     // ranks of the job; 0: unknown
  int32_t expected = 0;  // ranks below this relay
  bool files = true;     // large values may go in memory files: all that is below is on this host
  // Arrivals of ranks at a group of the whole world wait so long for those of the other ranks
  // below; then they go without, so that the root can name who is missing.
  absl::Duration linger = absl::Milliseconds(20);
};

class StoreRelayTable final : public StoreBackend {
 public:
  // `up` outlives it.
  StoreRelayTable(StoreClientCore* up, StoreRelayTableOptions options);

  void Execute(StoreTicket ticket, StoreRequest&& request, absl::Time now) override;
  void Forget(StoreTicket ticket) override;
  void Expel(StoreTicket ticket, absl::Status why) override;
  void Advance(absl::Time now) override;  // takes what came from above, and sends what is due
  absl::Time deadline() const override { return next_flush_; }
  void TakeAnswers(std::vector<StoreAnswer>& into) override { into.swap(answers_); }
  int64_t keys() const override { return 0; }
  int64_t waiting() const override { return static_cast<int64_t>(up_->pending()); }

  // One of its ranks' processes is of a higher generation than the relay, or it is of another host:
  // the root must know.
  void Announce(const StoreHello& hello);
  // Writes into the job's keys where this relay is. A failure is logged.
  void Publish(const std::string& key, const std::string& address);
  void PublishFailed(const std::string& key, const absl::Status& why) const;

 private:
  struct Arrival {
    StoreTicket ticket;
    StoreOp asked;  // by the ticket
    int32_t rank = 0;
    std::string value;
    std::shared_ptr<const RankSet> wanted;  // kExchange: with the ticket
  };
  // What is asked together: operation, key, size, root, timeout.
  using What = std::tuple<StoreOp, std::string, int32_t, int32_t, absl::Duration>;
  struct Batch {
    std::vector<Arrival> arrivals;
    absl::Time flush_at;
  };
  // Asked of the root.
  struct Asked {
    StoreTicket ticket;  // unless it is a group
    StoreOp op = StoreOp::kSet;
    What what;
    std::vector<Arrival> arrivals;
  };

  void Enter(StoreTicket ticket, StoreRequest&& request, absl::Time now);
  void Send(const What& what, std::vector<Arrival> arrivals);
  void Sink(uint64_t id, size_t total, size_t offset, absl::string_view bytes);
  StoreReply ReplyOf(uint64_t id, StoreResult& result);
  void AnswerGroup(const Asked& asked, const StoreReply& reply);

  StoreClientCore* const up_;
  const StoreRelayTableOptions options_;
  std::map<What, Batch> batches_;
  absl::Time next_flush_ = absl::InfiniteFuture();
  std::unordered_map<uint64_t, Asked> asked_;
  std::pair<uint64_t, std::string> published_;  // request, key
  std::map<StoreTicket, uint64_t> forwarded_;
  struct File {
    std::shared_ptr<FileDescriptor> file;
    uint64_t bytes = 0;
    std::string text;  // without a valid file: what it would hold
    absl::Status status;
  };
  static void Unfile(File& file, size_t offset, absl::string_view bytes);
  std::unordered_map<uint64_t, File> files_;
  std::vector<StoreAnswer> answers_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_TABLE_H_
