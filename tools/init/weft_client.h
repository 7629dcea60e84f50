// A Client of our own store: what a StoreClient does, without its thread.
#ifndef WEFT_TOOLS_INIT_WEFT_CLIENT_H_
#define WEFT_TOOLS_INIT_WEFT_CLIENT_H_

#include <functional>
#include <string>
#include <vector>

#include "collectives/store/client/store_client_core.h"
#include "collectives/store/protocol/ascending_map.h"
#include "collectives/store/relay/store_link.h"
#include "tools/init/client.h"

namespace weft::init {

class WeftClient final : public Client {
 public:
  explicit WeftClient(const ClientSetup& setup);

  void Start(std::function<void(const absl::Status&)> connected) override;
  bool eager() const override { return true; }

  void Set(const std::string& key, const std::string& value, Done done) override;
  void Get(const std::string& key, Done done) override;
  void Add(const std::string& key, int64_t amount, Done done) override;
  void Wait(const std::string& key, Done done) override;
  void Barrier(const std::string& key, int rank, int size, Done done) override;
  void AllGather(const std::string& key, int rank, int size, Done done) override;
  void Exchange(const std::string& key, int rank, int size, const collectives::RankSet& wanted,
                Done done) override;
  void Call(collectives::StoreRequest&& request, Done done);

  void Advance(absl::Time now) override {
    if (link_.deadline() <= now) link_.Advance(now);
  }
  int64_t sent() const override { return core_.messages_sent(); }
  int64_t received() const override { return core_.messages_received(); }

 private:
  struct Asked {
    Done done;
    bool gathers = false;
    collectives::RankSet wanted;  // of an exchange
  };
  void Changed();
  void Deliver();
  uint64_t Send(collectives::StoreRequest&& request, Asked asked);
  absl::Status CheckAll(const collectives::StoreResult& result);
  absl::Status CheckFile(const collectives::StoreResult& result) const;
  absl::Status CheckWanted(collectives::StoreResult& result, const collectives::RankSet& wanted);

  const ClientSetup setup_;
  collectives::StoreClientCore core_;
  collectives::StoreLink link_;
  std::function<void(const absl::Status&)> connected_;
  bool busy_ = false;  // within Changed(): the link flushes after it
  collectives::AscendingMap<Asked> asked_;
  std::vector<collectives::StoreClientCore::Answer> answers_;  // memory to use again
  size_t streamed_ = 0;         // bytes of an all-gather that were right
  uint64_t exchange_ = 0;       // the request
  std::string exchange_bytes_;  // of its answer, where they were streamed
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_WEFT_CLIENT_H_
