#include "tools/init/simulated_rank.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::init {

using collectives::MemberRecord;
using collectives::StoreClientCore;
using collectives::StoreOp;
using collectives::StoreRequest;
using collectives::StoreResult;

namespace {

constexpr int kRanksPerRoot = 256;

// Where each rank's record begins: what a rank does with the exchange before it looks at anything.
std::vector<absl::string_view> Index(absl::string_view exchange, size_t ranks) {
  std::vector<absl::string_view> records;
  records.reserve(ranks);
  while (exchange.size() >= 4) {
    uint32_t size = 0;
    std::memcpy(&size, exchange.data(), sizeof(size));
    records.push_back(exchange.substr(4, size));
    exchange.remove_prefix(4 + size);
  }
  return records;
}

}  // namespace

collectives::StoreHello HelloOf(const Crew& crew, int rank, int generation) {
  collectives::StoreHello hello;
  hello.id = collectives::NewStoreId();
  hello.name = absl::StrCat("rank ", rank);
  hello.job = "weft-init";
  hello.host = absl::StrCat("host", rank / crew.options->ranks_per_host());
  hello.rank = rank;
  hello.ranks = 1;
  hello.generation = generation;
  return hello;
}

MemberRecord RecordOf(const Options& options, int rank, int generation) {
  int host = rank / options.ranks_per_host();
  MemberRecord record;
  record.generation = generation;
  record.host = absl::StrCat("host", host);
  record.address = absl::StrFormat("10.%d.%d.%d:%d", host >> 16, (host >> 8) & 255, host & 255,
                                   20000 + rank % options.ranks_per_host());
  int ids = collectives::UniqueIdsOfRank(options.mesh, rank, kRanksPerRoot);
  for (int i = 0; i < ids; ++i) {
    std::string id(collectives::kUniqueIdBytes, '\0');
    for (size_t k = 0; k < id.size(); ++k) {
      id[k] = static_cast<char>(static_cast<size_t>(rank) * 31 + static_cast<size_t>(i) * 7 + k);
    }
    record.unique_ids.push_back(std::move(id));
  }
  return record;
}

std::string ExchangeOf(const Options& options) {
  std::string all;
  for (int rank = 0; rank < options.ranks; ++rank) {
    collectives::AppendValue(all, collectives::EncodeMember(RecordOf(options, rank, 0)));
  }
  return all;
}

SimulatedRank::SimulatedRank(const Crew& crew, int rank, collectives::StoreLinkOptions link,
                             std::function<void()> settled, std::function<void()> finished)
    : crew_(crew),
      rank_(rank),
      core_(crew.secret, HelloOf(crew, rank, /*generation=*/0)),
      link_(*crew.reactor, core_, link, [this] { Changed(); }),
      settled_(std::move(settled)),
      finished_(std::move(finished)) {
  core_.set_sink([this](uint64_t, size_t total, size_t offset, absl::string_view bytes) {
    const std::string& expected = *crew_.exchange;
    bool right = total == expected.size() &&
                 std::memcmp(expected.data() + offset, bytes.data(), bytes.size()) == 0;
    if (right) streamed_ += bytes.size();
  });
}

void SimulatedRank::Start() {
  crew_.shared->times()[rank_].begin = SystemClock::Nanoseconds();
  // To a relay everything goes at once; a remote server proves itself first.
  bool local = crew_.options->relay;
  if (local) Register();
  link_.Dial();
}

void SimulatedRank::Mark(Phase phase) {
  crew_.shared->times()[rank_].end[static_cast<size_t>(phase)] = SystemClock::Nanoseconds();
}

void SimulatedRank::Fail(const absl::Status& status) {
  if (finished_once_) {
    if (status_.ok()) status_ = Annotate(status, absl::StrCat("rank ", rank_));
    return;
  }
  finished_once_ = true;
  status_ = Annotate(status, absl::StrCat("rank ", rank_));
  if (!connected_) settled_();
  finished_();
}

void SimulatedRank::Changed() {
  if (core_.state() == StoreClientCore::State::kGone) return Fail(core_.gone());
  if (!connected_ && core_.state() == StoreClientCore::State::kReady) {
    connected_ = true;
    Mark(Phase::kConnect);
    settled_();
    if (barrier_ == 0) Register();
  }
  for (StoreClientCore::Answer& answer : core_.TakeAnswers()) {
    if (!answer.result.status.ok()) return Fail(answer.result.status);
    if (answered_) {
      answered_();
    } else if (answer.id == barrier_) {
      Mark(Phase::kRegister);
      Exchange();
    } else if (answer.id == exchange_) {
      Mark(Phase::kExchange);
      TakeExchange(answer.result);
    }
  }
}

void SimulatedRank::Ask(std::vector<StoreRequest> requests, std::function<void()> answered) {
  answered_ = std::move(answered);
  for (StoreRequest& request : requests) core_.Call(std::move(request));
  link_.Flush();
}

void SimulatedRank::Register() {
  StoreRequest request;
  request.op = StoreOp::kBarrier;
  request.rank = rank_;
  request.size = crew_.options->ranks;
  request.keys = {"init/register"};
  request.timeout = crew_.options->timeout;
  barrier_ = core_.Call(std::move(request));
}

void SimulatedRank::Exchange() {
  StoreRequest request;
  request.op = StoreOp::kAllGather;
  request.rank = rank_;
  request.size = crew_.options->ranks;
  request.keys = {"init/exchange"};
  request.values = {collectives::EncodeMember(RecordOf(*crew_.options, rank_, 0))};
  request.timeout = crew_.options->timeout;
  exchange_ = core_.Call(std::move(request));
}

// A host's ranks share one file; the first of them compares every byte of it.
absl::Status SimulatedRank::CheckFile(const StoreResult& result) {
  void* memory = mmap(nullptr, result.file_bytes, PROT_READ, MAP_SHARED, result.file->get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map the exchange");
  absl::string_view bytes(static_cast<const char*>(memory), result.file_bytes);
  bool first = rank_ % crew_.options->ranks_per_host() == 0;
  bool right = bytes.size() == crew_.exchange->size() && (!first || bytes == *crew_.exchange);
  munmap(memory, result.file_bytes);
  return right ? absl::OkStatus() : absl::DataLossError("the exchange brought other bytes");
}

void SimulatedRank::TakeExchange(const StoreResult& result) {
  absl::Status status;
  if (result.file != nullptr) {
    status = CheckFile(result);
  } else if (result.streamed) {
    if (streamed_ != crew_.exchange->size()) {
      status = absl::DataLossError("the exchange brought other bytes");
    }
  } else {
    std::string all;
    for (const auto& value : result.values) collectives::AppendValue(all, value);
    if (all != *crew_.exchange) status = absl::DataLossError("the exchange brought other bytes");
  }
  if (!status.ok()) return Fail(status);
  const Options& options = *crew_.options;
  auto records = Index(*crew_.exchange, static_cast<size_t>(options.ranks));
  std::vector<collectives::Mesh::Group> groups = options.mesh.GroupsOfRank(rank_);
  size_t ids = 0;
  for (const auto& group : groups) {
    for (int member : group.members) {
      auto record = collectives::DecodeMember(records[static_cast<size_t>(member)]);
      if (!record.ok()) return Fail(record.status());
    }
    ids += collectives::UniqueIdSlots(options.mesh, group, kRanksPerRoot).size();
  }
  if (ids == 0) return Fail(absl::InternalError("no unique ids"));
  Mark(Phase::kGroups);
  std::vector<collectives::PlannedConnection> plan = collectives::PlanConnections(groups);
  if (plan.empty() && options.ranks > 1) return Fail(absl::InternalError("no connections"));
  Mark(Phase::kConnections);
  finished_once_ = true;
  finished_();
}

}  // namespace weft::init
