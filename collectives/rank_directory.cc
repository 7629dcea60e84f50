#include "collectives/rank_directory.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "collectives/planner/own_place.h"
#include "collectives/rendezvous/host_table.h"

namespace weft::collectives {
namespace {

// A look-up of a record takes no longer than this: all have given theirs by then.
constexpr absl::Duration kLookupPatience = absl::Seconds(30);

// Ranks of a job that is small enough for every rank to learn all addresses at the start, some 200
// bytes each, so that the first collective looks none up.
constexpr int kAllRecordsRanks = 64;

// Words of the store cannot hold spaces.
std::string Word(absl::string_view text) {
  return text.empty() ? "" : absl::StrCat("=", absl::BytesToHexString(text));
}
std::string FromWord(absl::string_view word) {
  return word.empty() ? "" : absl::HexStringToBytes(word.substr(1));
}

// Words of a record's address: one for each transport, then rank 0's costs, then the place.
constexpr size_t kCostsWord = kTransportsMax, kWords = kTransportsMax + 2;

absl::StatusOr<std::vector<std::string>> WordsIn(const MemberRecord& record, Rank rank) {
  std::vector<std::string> words = absl::StrSplit(record.address, ' ');
  if (words.size() == kWords) return words;
  return absl::DataLossError(absl::StrCat("rank ", rank.value(), " published no valid addresses"));
}

constexpr char kNewTable[] = "table";

std::string TableKey(const RejoinableOptions& options) {
  return absl::StrCat(options.job, "/hosts");
}

// Hosts, costs, which of the distinct places each rank has, and these.
std::string EncodeTable(const std::map<int, MemberRecord>& members,
                        const planner::CostTable& costs) {
  std::vector<std::string> names, places, distinct;
  for (const auto& [rank, record] : members) {
    names.push_back(record.host);
    places.emplace_back(record.address.substr(record.address.rfind(' ') + 1));
  }
  const std::vector<int> kinds = NumberNames(places);
  for (size_t rank = 0; rank < kinds.size(); ++rank) {
    if (kinds[rank] == static_cast<int>(distinct.size())) distinct.push_back(places[rank]);
  }
  return absl::StrCat(EncodeNumbers(NumberNames(names)), " ", planner::ToWord(costs), " ",
                      EncodeNumbers(kinds), " ", absl::StrJoin(distinct, " "));
}

}  // namespace

absl::StatusOr<RankDirectory::Addresses> RankDirectory::Exchange(const RejoinableOptions& options,
                                                                 Own own, Found found) {
  own_ = std::move(own);
  rank_ = options.rank;
  wanted_transport_ = options.settings.Text("transport");
  hosts_.resize(static_cast<size_t>(options.world_size));
  places_.resize(hosts_.size());
  if (options.world_size == 1) {
    places_[0] = own_.place;
    return Addresses();
  }
  FastInitOptions init;
  init.mesh = options.mesh;
  init.rank = rank_.value();
  init.generation = options.generation;
  init.prefix = options.job;
  init.host = options.host;
  for (const std::string& address : own_.addresses) {
    absl::StrAppend(&init.address, Word(address), " ");
  }
  // Rank 0's record has the costs as well, so that a rank with all records can make the table.
  absl::StrAppend(&init.address, rank_ == Rank(0) ? planner::ToWord(own_.costs) : "", " ",
                  ToWord(own_.place));
  init.all_records = (rank_ == Rank(0) && !options.rejoining.has_value()) ||
                     options.world_size <= kAllRecordsRanks;
  init.timeout = options.settings.Duration("store.timeout");
  auto job = ExchangeRecords(options, init);
  if (!job.ok()) return Annotate(job.status(), "learn the addresses of the other ranks");
  WEFT_RETURN_IF_ERROR(ShareTable(options, *job));
  Addresses addresses;
  for (const auto& [rank, record] : job->members) {
    if (Rank(rank) == rank_) continue;
    WEFT_ASSIGN_OR_RETURN(std::string address, AddressIn(record, Rank(rank)));
    addresses.emplace_back(Rank(rank), std::move(address));
  }
  init.timeout = std::min(init.timeout, kLookupPatience);
  lookup_ = std::make_unique<RecordLookup>(
      options.store, init,
      [this, found = std::move(found)](int rank, const absl::StatusOr<MemberRecord>& record) {
        if (!record.ok()) return found(Rank(rank), record.status());
        found(Rank(rank), AddressIn(*record, Rank(rank)));
      });
  return addresses;
}

absl::StatusOr<JobGroups> RankDirectory::ExchangeRecords(const RejoinableOptions& options,
                                                         const FastInitOptions& init) {
  if (!options.rejoining.has_value()) return CreateGroups(*options.store, init);
  FastInitOptions rejoin = init;
  rejoin.round = options.rejoining->epoch;
  WEFT_ASSIGN_OR_RETURN(JobGroups job,
                        RejoinGroups(*options.store, rejoin, options.rejoining->replaced,
                                     [&](const auto& before, const auto& now) {
                                       return RenewTable(options, rejoin, before, now);
                                     }));
  // The table is that of now once these are there.
  WEFT_RETURN_IF_ERROR(ReadReplacement(*options.store, rejoin).status());
  return job;
}

absl::StatusOr<std::string> RankDirectory::RenewTable(const RejoinableOptions& options,
                                                      const FastInitOptions& init,
                                                      const std::map<int, MemberRecord>& before,
                                                      const std::map<int, MemberRecord>& now) {
  const auto place = [](const MemberRecord& record) {
    return record.address.substr(record.address.rfind(' ') + 1);
  };
  bool is_same = true;
  for (const auto& [rank, record] : now) {
    const MemberRecord& old = before.at(rank);
    is_same = is_same && old.host == record.host && place(old) == place(record);
  }
  if (is_same) return std::string();
  std::vector<int> others = RankSet::Below(options.world_size).ranks();
  std::erase_if(others, [&](int rank) { return now.count(rank) != 0; });
  WEFT_ASSIGN_OR_RETURN(auto members, FindMembers(*options.store, init, RankSet(others)));
  members.insert(now.begin(), now.end());
  WEFT_ASSIGN_OR_RETURN(const std::string old, ReadTable(options, TableKey(options)));
  WEFT_RETURN_IF_ERROR(TakeTable(old));  // for rank 0's costs
  WEFT_RETURN_IF_ERROR(options.store->Set(TableKey(options), EncodeTable(members, own_.costs)));
  return std::string(kNewTable);
}

absl::StatusOr<RankDirectory::Addresses> RankDirectory::TakeReplaced(
    const RejoinableOptions& options, const Rejoining& rejoining) {
  FastInitOptions init;
  init.prefix = options.job;
  init.round = rejoining.epoch;
  init.timeout = std::min(options.settings.Duration("store.timeout"), kLookupPatience);
  WEFT_ASSIGN_OR_RETURN(const Replacement news, ReadReplacement(*options.store, init));
  if (news.note == kNewTable) {
    WEFT_ASSIGN_OR_RETURN(const std::string table, ReadTable(options, TableKey(options)));
    WEFT_RETURN_IF_ERROR(TakeTable(table));
  }
  Addresses addresses;
  for (const auto& [rank, record] : news.members) {
    if (rank < 0 || static_cast<size_t>(rank) >= hosts_.size()) {
      return absl::DataLossError(absl::StrCat("the store has news of rank ", rank, " in a job of ",
                                              hosts_.size(), " ranks"));
    }
    if (Rank(rank) == rank_) continue;
    WEFT_ASSIGN_OR_RETURN(std::string address, AddressIn(record, Rank(rank)));
    addresses.emplace_back(Rank(rank), std::move(address));
  }
  return addresses;
}

int RankDirectory::transport(Rank rank) const {
  const bool has_memory = !own_.addresses[0].empty(), has_network = !own_.addresses[1].empty();
  return has_memory && (!has_network || host(rank) == host(rank_)) ? 0 : 1;
}

absl::Status RankDirectory::ShareTable(const RejoinableOptions& options, const JobGroups& job) {
  const std::string key = TableKey(options);
  std::string table;
  const bool has_all = static_cast<int>(job.members.size()) == options.world_size;
  if (has_all && !options.rejoining.has_value()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                          WordsIn(job.members.at(0), Rank(0)));
    WEFT_ASSIGN_OR_RETURN(const planner::CostTable costs, planner::FromWord(words[kCostsWord]));
    table = EncodeTable(job.members, costs);
    if (rank_ == Rank(0)) WEFT_RETURN_IF_ERROR(options.store->Set(key, table));
  } else {
    WEFT_ASSIGN_OR_RETURN(table, ReadTable(options, key));
  }
  const absl::Status status = TakeTable(table);
  return status.ok() ? status : Annotate(status, absl::StrCat("key ", key, " of the store"));
}

absl::StatusOr<std::string> RankDirectory::ReadTable(const RejoinableOptions& options,
                                                     const std::string& key) {
  auto value = options.store->Get(key, options.settings.Duration("store.timeout"));
  if (value.ok()) return value;
  // Rank 0 waits for everybody's record.
  const std::vector<int> all = RankSet::Below(options.world_size).ranks();
  std::vector<std::string> keys;
  for (int rank : all) keys.push_back(RecordKey(options.job, rank));
  return NameMissing(*options.store, value.status(), "wait for rank 0's table of hosts", all, keys);
}

absl::Status RankDirectory::TakeTable(absl::string_view table) {
  constexpr size_t kBefore = 3;  // words before the distinct places
  const int ranks = static_cast<int>(hosts_.size());
  const std::vector<std::string> words = absl::StrSplit(table, ' ');
  if (words.size() <= kBefore) return absl::DataLossError("no table of hosts");
  WEFT_ASSIGN_OR_RETURN(hosts_, DecodeNumbers(words[0], ranks));
  WEFT_ASSIGN_OR_RETURN(own_.costs, planner::FromWord(words[1]));
  WEFT_ASSIGN_OR_RETURN(const std::vector<int> kinds, DecodeNumbers(words[2], ranks));
  std::vector<RankPlace> distinct(words.size() - kBefore);
  for (size_t kind = 0; kind < distinct.size(); ++kind) {
    WEFT_ASSIGN_OR_RETURN(distinct[kind], RankPlaceFromWord(words[kBefore + kind]));
  }
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    const auto kind = static_cast<size_t>(kinds[rank]);
    if (kind >= distinct.size()) return absl::DataLossError("a place is missing");
    places_[rank] = distinct[kind];
    places_[rank].host = absl::StrCat(hosts_[rank]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RankDirectory::AddressIn(const MemberRecord& record, Rank rank) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> words, WordsIn(record, rank));
  std::string address = FromWord(words[static_cast<size_t>(transport(rank))]);
  if (!address.empty()) return address;
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank.value(), " has another setting of \"transport\" than rank ",
                   rank_.value(), " (", wanted_transport_, ")"));
}

}  // namespace weft::collectives
