// One rank of weft-init: a real connection and a real client, without a process of its own. It goes
// the way of any rank into its job: connects, registers (a barrier of all), exchanges its record
// for everybody's (an all-gather), computes its groups, plans its connections.
#ifndef WEFT_TOOLS_INIT_SIMULATED_RANK_H_
#define WEFT_TOOLS_INIT_SIMULATED_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/rendezvous/fast_init.h"
#include "collectives/rendezvous/store_client_core.h"
#include "collectives/rendezvous/store_link.h"
#include "tools/init/options.h"
#include "tools/init/shared.h"

namespace weft::init {

// What rank `rank` tells the others; everybody can compute it, so that every byte can be checked.
collectives::MemberRecord RecordOf(const Options& options, int rank, int generation);
// All ranks' records as the exchange gives them: each with its length, in order.
std::string ExchangeOf(const Options& options);

// What all ranks of a worker share.
struct Crew {
  const Options* options = nullptr;
  Shared* shared = nullptr;
  net::JobSecret secret{};
  const std::string* exchange = nullptr;  // ExchangeOf()
  collectives::StoreReactor* reactor = nullptr;
};

collectives::StoreHello HelloOf(const Crew& crew, int rank, int generation);

class SimulatedRank {
 public:
  // `settled` is called once: it is connected, or it failed; `finished` when it is through.
  SimulatedRank(const Crew& crew, int rank, collectives::StoreLinkOptions link,
                std::function<void()> settled, std::function<void()> finished);

  void Start();
  // Once it is through: asks what `requests` say; `answered` is called for each answer.
  void Ask(std::vector<collectives::StoreRequest> requests, std::function<void()> answered);
  collectives::StoreLink& link() { return link_; }
  const collectives::StoreClientCore& core() const { return core_; }
  int rank() const { return rank_; }
  const absl::Status& status() const { return status_; }

 private:
  void Changed();
  void Fail(const absl::Status& status);
  void Mark(Phase phase);
  void Register();
  void Exchange();
  void TakeExchange(const collectives::StoreResult& result);
  absl::Status CheckFile(const collectives::StoreResult& result);

  const Crew& crew_;
  const int rank_;
  collectives::StoreClientCore core_;
  collectives::StoreLink link_;
  std::function<void()> settled_;
  std::function<void()> finished_;
  std::function<void()> answered_;
  bool connected_ = false;
  bool finished_once_ = false;
  size_t streamed_ = 0;  // bytes of the exchange that were right
  uint64_t barrier_ = 0;
  uint64_t exchange_ = 0;
  absl::Status status_;
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_SIMULATED_RANK_H_
