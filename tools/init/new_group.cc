#include "tools/init/new_group.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"
#include "collectives/store/client/store_client.h"
#include "net/secret.h"
#include "tools/init/measure.h"
#include "tools/init/process.h"
#include "tools/init/shared.h"

namespace weft::init {
namespace {

using collectives::Communicator;
using collectives::Endpoint;

constexpr size_t kGroups = 5;

// A rank's times, in nanoseconds of SystemClock.
struct Times {
  int64_t begin = 0;
  int64_t endpoint = 0;
  int64_t world = 0;
  struct Group {
    int64_t begin = 0, made = 0, ready = 0;
  };
  std::array<Group, kGroups> groups;
};

absl::Status Join(const Options& options, const net::JobSecret& secret, int rank,
                  const std::string& address, Times& times) {
  collectives::StoreClientOptions client;
  client.address = address;
  client.secret = secret;
  client.job = "weft-init";
  client.rank = Rank(rank);
  WEFT_ASSIGN_OR_RETURN(auto store, collectives::StoreClient::Connect(client));
  collectives::EndpointOptions endpoint_options;
  endpoint_options.rank = Rank(rank);
  endpoint_options.world_size = options.ranks;
  endpoint_options.store = store.get();
  endpoint_options.secret = secret;
  times.begin = SystemClock::Nanoseconds();
  WEFT_ASSIGN_OR_RETURN(auto endpoint, Endpoint::Create(std::move(endpoint_options)));
  times.endpoint = SystemClock::Nanoseconds();
  std::vector<Rank> everybody;
  everybody.reserve(static_cast<size_t>(options.ranks));
  for (int i = 0; i < options.ranks; ++i) everybody.push_back(Rank(i));
  WEFT_ASSIGN_OR_RETURN(auto world, Communicator::Create(endpoint, "world", everybody));
  WEFT_RETURN_IF_ERROR(world->Barrier()->Wait(options.timeout));
  times.world = SystemClock::Nanoseconds();
  for (size_t i = 0; i < kGroups; ++i) {
    Times::Group& group = times.groups[i];
    WEFT_RETURN_IF_ERROR(world->Barrier()->Wait(options.timeout));
    WEFT_RETURN_IF_ERROR(world->Barrier()->Wait(options.timeout));
    group.begin = SystemClock::Nanoseconds();
    WEFT_ASSIGN_OR_RETURN(auto made,
                          Communicator::Create(endpoint, absl::StrCat("group", i), everybody));
    group.made = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(made->Barrier()->Wait(options.timeout));
    group.ready = SystemClock::Nanoseconds();
  }
  return store->Barrier("weft-init/end", rank, options.ranks, options.timeout);
}

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

NewGroupMeasurement Summarise(const Times* times, int ranks) {
  NewGroupMeasurement m;
  m.ranks = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    m.endpoint = std::max(m.endpoint, Seconds(times[rank].endpoint - times[rank].begin));
    m.world = std::max(m.world, Seconds(times[rank].world - times[rank].endpoint));
  }
  for (size_t i = 0; i < kGroups; ++i) {
    double made = 0;
    double ready = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Times::Group& group = times[rank].groups[i];
      made = std::max(made, Seconds(group.made - group.begin));
      ready = std::max(ready, Seconds(group.ready - group.begin));
    }
    m.made.push_back(made);
    m.ready.push_back(ready);
  }
  std::sort(m.made.begin(), m.made.end());
  std::sort(m.ready.begin(), m.ready.end());
  return m;
}

}  // namespace

absl::StatusOr<NewGroupMeasurement> MeasureNewGroup(const Options& options) {
  RaiseOpenFilesLimit();
  WEFT_ASSIGN_OR_RETURN(SharedArray<Times> times, MapArray<Times>(options.ranks));
  net::JobSecret secret = net::NewJobSecret();
  const absl::Status status =
      RunRanks(options.ranks, secret, 2 * options.timeout, [&](int rank, const std::string& at) {
        return Join(options, secret, rank, at, times[rank]);
      });
  NewGroupMeasurement m = Summarise(times.get(), options.ranks);
  WEFT_RETURN_IF_ERROR(status);
  return m;
}

}  // namespace weft::init
