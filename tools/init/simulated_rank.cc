#include "tools/init/simulated_rank.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::init {

using collectives::MemberRecord;

namespace {

constexpr int kRanksPerRoot = 256;

}  // namespace

collectives::StoreHello HelloOf(const ProcessContext& context, int rank, int generation) {
  collectives::StoreHello hello;
  hello.id = collectives::NewStoreId();
  hello.name = absl::StrCat("rank ", rank);
  hello.job = "weft-init";
  hello.host = absl::StrCat("host", rank / context.options->ranks_per_host());
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
  record.address = AddressOf(options, rank).ToString();
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

Expected ExchangeOf(const Options& options) {
  Expected all;
  for (int rank = 0; rank < options.ranks; ++rank) {
    all.Add(collectives::EncodeMember(RecordOf(options, rank, 0)));
  }
  return all;
}

collectives::RankSet WantedBy(const Options& options, int rank) {
  return collectives::RecordsWanted(options.mesh, rank, kRanksPerRoot, /*ids=*/true);
}

int64_t ExchangeBytes(const Options& options, const Expected& exchange, int first, int end) {
  if (options.all_records) return static_cast<int64_t>(exchange.bytes().size());
  collectives::RankSet wanted;
  for (int rank = first; rank < end; ++rank) wanted.Add(WantedBy(options, rank));
  size_t bytes = sizeof(uint32_t) + wanted.Encode().size();
  for (int rank : wanted.ranks()) bytes += sizeof(uint32_t) + exchange.value(rank).size();
  return static_cast<int64_t>(bytes);
}

int64_t MeanExchangeBytes(const Options& options) {
  Expected exchange = ExchangeOf(options);
  if (options.all_records) return ExchangeBytes(options, exchange, 0, 0);
  int step = options.relay ? options.ranks_per_host() : 1;
  int64_t sum = 0;
  for (int first = 0; first < options.ranks; first += step) {
    sum += ExchangeBytes(options, exchange, first, first + step);
  }
  return sum * step / options.ranks;
}

ClientSetup SetupOf(const ProcessContext& context, int rank,
                    const collectives::StoreLinkOptions& link) {
  ClientSetup setup;
  setup.poller = context.poller;
  setup.link = link;
  setup.server = context.server;
  setup.source = link.source;
  setup.local = context.options->relay;
  setup.timeout = context.options->timeout;
  setup.expected = context.exchange;
  setup.secret = context.secret;
  setup.rank = rank;
  setup.host = absl::StrCat("host", rank / context.options->ranks_per_host());
  setup.checks_file = rank % context.options->ranks_per_host() == 0;
  return setup;
}

SimulatedRank::SimulatedRank(const ProcessContext& context, int rank,
                             const collectives::StoreLinkOptions& link, PeerLinks& links,
                             std::function<void()> settled, std::function<void()> finished)
    : context_(context),
      rank_(rank),
      links_(links),
      client_(context.options->store->MakeClient(SetupOf(context, rank, link))),
      settled_(std::move(settled)),
      finished_(std::move(finished)) {}

void SimulatedRank::Start() {
  context_.shared->times()[rank_].begin = SystemClock::Nanoseconds();
  if (client_->eager()) Register();
  client_->Start([this](const absl::Status& status) { Connected(status); });
}

void SimulatedRank::Mark(Phase phase) {
  context_.shared->times()[rank_].end[static_cast<size_t>(phase)] = SystemClock::Nanoseconds();
}

void SimulatedRank::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = Annotate(status, absl::StrCat("rank ", rank_));
  if (!std::exchange(settled_once_, true)) settled_();
  if (!std::exchange(finished_once_, true)) finished_();
}

void SimulatedRank::Connected(const absl::Status& status) {
  if (!status.ok()) return Fail(status);
  Mark(Phase::kConnect);
  settled_once_ = true;
  settled_();
  if (!client_->eager()) Register();
}

void SimulatedRank::Register() {
  client_->Barrier("init/register", rank_, context_.options->ranks,
                   [this](const absl::Status& status, int64_t) {
                     if (!status.ok()) return Fail(status);
                     Mark(Phase::kRegister);
                     if (context_.options->group_maker) return RunGroupMaker();
                     Exchange();
                   });
}

void SimulatedRank::Exchange() {
  auto done = [this](const absl::Status& status, int64_t) {
    if (!status.ok()) return Fail(status);
    Mark(Phase::kExchange);
    ComputeGroups();
  };
  const Options& options = *context_.options;
  std::string key = collectives::RecordsKey("init");
  if (options.all_records) return client_->AllGather(key, rank_, options.ranks, done);
  client_->Exchange(key, rank_, options.ranks, WantedBy(options, rank_), done);
}

void SimulatedRank::ComputeGroups() {
  const Options& options = *context_.options;
  std::vector<topology::MeshGroup> groups = options.mesh.GroupsOf(topology::JobRank(rank_));
  std::vector<int> known;  // whose records it has; else of its groups' members
  if (!options.all_records) known = WantedBy(options, rank_).ranks();
  size_t ids = 0;
  for (const auto& group : groups) {
    for (topology::JobRank member : group.members) {
      if (options.all_records) known.push_back(member.value());
    }
    ids += collectives::UniqueIdSlots(options.mesh, group, kRanksPerRoot).size();
  }
  for (int rank : known) {
    auto record = collectives::DecodeMember(context_.exchange->value(rank));
    if (!record.ok()) return Fail(record.status());
  }
  if (ids == 0) return Fail(absl::InternalError("no unique ids"));
  Mark(Phase::kGroups);
  OpenConnections();
}

void SimulatedRank::RunGroupMaker() {
  Mark(Phase::kExchange);
  maker_ = context_.options->group_maker(*client_, context_.options->mesh, rank_);
  maker_->Run([this](const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    Mark(Phase::kGroups);
    OpenConnections();
  });
}

void SimulatedRank::OpenConnections() {
  links_.Begin([this](const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    Mark(Phase::kConnections);
    finished_once_ = true;
    finished_();
  });
}

}  // namespace weft::init
