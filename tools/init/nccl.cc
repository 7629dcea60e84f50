#include "tools/init/nccl.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/cuda/device.h"
#include "collectives/cuda/nccl_groups.h"
#include "collectives/data_type.h"
#include "collectives/rendezvous/fast_init.h"
#include "collectives/store/client/store_client.h"
#include "net/secret.h"
#include "tools/init/measure.h"
#include "tools/init/process.h"
#include "tools/init/shared.h"

namespace weft::init {
namespace {

using collectives::Device;
using collectives::JobGroups;
using collectives::NcclMaker;
using collectives::StoreClient;
using Communicators = std::vector<WeftNcclCommunicator*>;

enum Moment : size_t { kBegin, kExchange, kFromIds, kFirstSum, kWorld, kSplit, kMoments };

struct Seen {
  std::array<int64_t, kMoments> at{};  // nanoseconds of SystemClock
  bool splits = false;
  bool scales = false;
  bool shared = false;
  bool absent = false;  // there is no GPU
  std::array<char, 200> device{};
};

// A stream, and one number in device memory.
class Scratch {
 public:
  static absl::StatusOr<std::unique_ptr<Scratch>> Make(const Device& device) {
    std::unique_ptr<Scratch> made(new Scratch(device));
    WEFT_RETURN_IF_ERROR(device.Check(device.calls().StreamCreate(&made->stream_, 0), "a stream"));
    WEFT_RETURN_IF_ERROR(
        device.Check(device.calls().Allocate(&made->number_, sizeof(float)), "device memory"));
    return made;
  }
  ~Scratch() {
    if (number_ != nullptr) (void)device_.calls().Free(number_);
    if (stream_ != nullptr) (void)device_.calls().StreamDestroy(stream_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Every rank gives one, so that each gets how many there are.
  absl::Status Count(WeftNcclCommunicator* communicator, size_t ranks) {
    const WeftDeviceTable& calls = device_.calls();
    float one = 1;
    float sum = 0;
    WEFT_RETURN_IF_ERROR(
        device_.Check(calls.CopyAsync(number_, &one, sizeof(one), stream_), "copy to the GPU"));
    WEFT_RETURN_IF_ERROR(
        device_.Check(calls.NcclAllReduce(communicator, number_, number_, 1,
                                          static_cast<int>(collectives::DataType::kFloat32),
                                          static_cast<int>(collectives::ReduceOp::kSum), stream_),
                      "all-reduce"));
    WEFT_RETURN_IF_ERROR(
        device_.Check(calls.CopyAsync(&sum, number_, sizeof(sum), stream_), "copy from the GPU"));
    WEFT_RETURN_IF_ERROR(device_.Check(calls.StreamSynchronize(stream_), "await the all-reduce"));
    if (sum == static_cast<float>(ranks)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("a group of ", ranks, " ranks adds up ones to ", sum));
  }

 private:
  explicit Scratch(const Device& device) : device_(device) {}
  const Device& device_;
  WeftStream* stream_ = nullptr;
  void* number_ = nullptr;
};

absl::Status CountAll(Scratch& scratch, const JobGroups& job, const Communicators& made) {
  for (size_t i = 0; i < made.size(); ++i) {
    if (made[i] == nullptr) continue;  // of one rank
    WEFT_RETURN_IF_ERROR(Annotate(scratch.Count(made[i], job.groups[i].group.members.size()),
                                  absl::StrCat("group ", job.groups[i].group.index, " of ",
                                               ToString(job.groups[i].group.axes))));
  }
  return absl::OkStatus();
}

void Destroy(const Device& device, const Communicators& made) {
  for (WeftNcclCommunicator* one : made) {
    if (one != nullptr) (void)device.calls().NcclDestroy(one);
  }
}

class NcclRank {
 public:
  NcclRank(const Options& options, int rank, Seen& seen)
      : options_(options), rank_(rank), seen_(seen) {}

  absl::Status Run(const std::string& address, const net::JobSecret& secret) {
    WEFT_ASSIGN_OR_RETURN(Device device, Select());
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Scratch> scratch, Scratch::Make(device));
    collectives::StoreClientOptions client;
    client.address = address;
    client.secret = secret;
    client.job = "weft-init";
    client.rank = Rank(rank_);
    WEFT_ASSIGN_OR_RETURN(auto store, StoreClient::Connect(client));
    NcclMaker nccl = collectives::NcclMakerOf(device);
    // A GPU's first use takes a second, which is not what is measured.
    WEFT_RETURN_IF_ERROR(store->Barrier("begin", rank_, options_.ranks, options_.timeout));
    Mark(kBegin);
    WEFT_ASSIGN_OR_RETURN(JobGroups job, Groups(*store, device, options_.mesh, "groups"));
    Mark(kExchange);
    WEFT_ASSIGN_OR_RETURN(Communicators made, collectives::MakeCommunicators(nccl, job));
    Mark(kFromIds);
    WEFT_RETURN_IF_ERROR(CountAll(*scratch, job, made));
    Mark(kFirstSum);
    Destroy(device, made);
    WEFT_ASSIGN_OR_RETURN(auto whole,
                          topology::Mesh::Create({{topology::Axis::kData, options_.ranks}}));
    WEFT_ASSIGN_OR_RETURN(JobGroups all, Groups(*store, device, whole, "world"));
    WEFT_ASSIGN_OR_RETURN(Communicators world, collectives::MakeCommunicators(nccl, all));
    Mark(kWorld);
    WEFT_ASSIGN_OR_RETURN(made, collectives::MakeCommunicators(nccl, job, world[0]));
    Mark(kSplit);
    WEFT_RETURN_IF_ERROR(CountAll(*scratch, job, made));
    WEFT_RETURN_IF_ERROR(CountAll(*scratch, all, world));
    Destroy(device, made);
    Destroy(device, world);
    return store->Barrier("end", rank_, options_.ranks, options_.timeout);
  }

 private:
  void Mark(Moment moment) { seen_.at[moment] = SystemClock::Nanoseconds(); }

  absl::StatusOr<Device> Select() {
    absl::StatusOr<Device> loaded = Device::Load(options_.cuda_library);
    seen_.absent = absl::IsUnavailable(loaded.status());
    WEFT_RETURN_IF_ERROR(loaded.status());
    Device device = *loaded;
    seen_.shared = options_.ranks > device.count();
    // NCCL refuses two ranks of one host on one GPU; as ranks of different hosts they may.
    if (seen_.shared) setenv("NCCL_HOSTID", absl::StrCat("weft-init-", rank_).c_str(), 1);
    int local = rank_ % device.count();
    WEFT_RETURN_IF_ERROR(
        device.Check(device.calls().SetDevice(local), absl::StrCat("select GPU ", local)));
    int splits = 0;
    int scales = 0;
    if (device.calls().NcclCan(&splits, &scales) == 0) {
      seen_.splits = splits != 0;
      seen_.scales = scales != 0;
    }
    std::string text = device.Describe().substr(0, seen_.device.size() - 1);
    std::copy(text.begin(), text.end(), seen_.device.begin());
    return device;
  }

  absl::StatusOr<JobGroups> Groups(StoreClient& store, const Device& device,
                                   const topology::Mesh& mesh, const std::string& prefix) {
    collectives::FastInitOptions fast;
    fast.mesh = mesh;
    fast.rank = rank_;
    fast.prefix = prefix;
    fast.ranks_per_root = options_.ranks_per_root;
    fast.make_unique_id = collectives::UniqueIdsOf(device);
    fast.timeout = options_.timeout;
    return collectives::CreateGroups(store, fast);
  }

  const Options& options_;
  const int rank_;
  Seen& seen_;
};

NcclMeasurement Summarise(const Seen* seen, int ranks) {
  NcclMeasurement m;
  m.ranks = ranks;
  m.device = seen[0].device.data();
  m.splits = seen[0].splits;
  m.scales = seen[0].scales;
  m.shared = seen[0].shared;
  auto last = [&](Moment moment) {
    int64_t latest = 0;
    for (int rank = 0; rank < ranks; ++rank) latest = std::max(latest, seen[rank].at[moment]);
    return static_cast<double>(latest) * 1e-9;
  };
  m.exchange = last(kExchange) - last(kBegin);
  m.from_ids = last(kFromIds) - last(kExchange);
  m.first_sum = last(kFirstSum) - last(kFromIds);
  m.world = last(kWorld) - last(kFirstSum);
  m.split = last(kSplit) - last(kWorld);
  return m;
}

}  // namespace

absl::StatusOr<NcclMeasurement> MeasureNccl(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(SharedArray<Seen> seen, MapArray<Seen>(options.ranks));
  net::JobSecret secret = net::NewJobSecret();
  const absl::Status status =
      RunRanks(options.ranks, secret, 2 * options.timeout, [&](int rank, const std::string& at) {
        return NcclRank(options, rank, seen[rank]).Run(at, secret);
      });
  NcclMeasurement m = Summarise(seen.get(), options.ranks);
  bool absent =
      std::any_of(seen.get(), seen.get() + options.ranks, [](const Seen& s) { return s.absent; });
  if (!status.ok() && absent) return absl::UnavailableError(status.message());
  WEFT_RETURN_IF_ERROR(status);
  return m;
}

}  // namespace weft::init
