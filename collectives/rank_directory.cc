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

// Ranks of a job that is small enough for every rank to learn all addresses at the start, some 100
// bytes each, so that the first collective looks none up.
constexpr int kAllAddressesRanks = 64;

// Words of the store cannot hold spaces.
std::string Word(absl::string_view text) {
  return text.empty() ? "" : absl::StrCat("=", absl::BytesToHexString(text));
}
std::string FromWord(absl::string_view word) {
  return word.empty() ? "" : absl::HexStringToBytes(word.substr(1));
}

// Words of a record's address: one for each transport, then rank 0's costs, then the place.
constexpr size_t kCostsWord = kTransportsMax, kWords = kTransportsMax + 2;

absl::Status NoValidAddresses(Rank rank) {
  return absl::DataLossError(absl::StrCat("rank ", rank.value(), " published no valid addresses"));
}

absl::StatusOr<std::vector<std::string>> WordsIn(const MemberRecord& record, Rank rank) {
  std::vector<std::string> words = absl::StrSplit(record.address, ' ');
  if (words.size() == kWords) return words;
  return NoValidAddresses(rank);
}

// Words of the table: the numbers of the hosts, rank 0's costs, the numbers of the distinct places,
// the addresses of all ranks, empty in a job that is not small, and each distinct place.
constexpr size_t kHostsOfTable = 0, kCostsOfTable = 1, kPlacesOfTable = 2, kAddressesOfTable = 3,
                 kBeforePlaces = 4;
constexpr char kBetweenRanks = ',', kBetweenTransports = ';';

// The addresses of all ranks on all transports, in one word of the table.
std::string EncodeAddresses(const std::map<int, MemberRecord>& members) {
  std::string out;
  for (const auto& [rank, record] : members) {
    if (rank > 0) out += kBetweenRanks;
    std::vector<absl::string_view> words =
        absl::StrSplit(record.address, absl::MaxSplits(' ', kTransportsMax));
    words.resize(kTransportsMax);
    absl::StrAppend(&out, absl::StrJoin(words, absl::string_view(&kBetweenTransports, 1)));
  }
  return out;
}

constexpr char kNewTable[] = "table";

std::string TableKey(const RejoinableOptions& options) {
  return absl::StrCat(options.job, "/hosts");
}

// `addresses`: what EncodeAddresses() gives, or empty.
std::string EncodeTable(const std::map<int, MemberRecord>& members, const planner::CostTable& costs,
                        absl::string_view addresses) {
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
                      EncodeNumbers(kinds), " ", addresses, " ", absl::StrJoin(distinct, " "));
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
  init.wanted = RecordsWantedBy(options);
  init.timeout = options.settings.Duration("store.timeout");
  auto job = ExchangeRecords(options, init);
  if (!job.ok()) return Annotate(job.status(), "learn the addresses of the other ranks");
  WEFT_ASSIGN_OR_RETURN(const std::string table, ShareTable(options, *job));
  Addresses addresses;
  if (init.wanted == FastInitOptions::Wanted::kNone) {
    WEFT_ASSIGN_OR_RETURN(addresses, AddressesInTable(table));
  }
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

// A process that comes into a job which goes on takes no addresses from the table: those of ranks
// that were replaced before it would be old ones.
FastInitOptions::Wanted RankDirectory::RecordsWantedBy(const RejoinableOptions& options) const {
  using Wanted = FastInitOptions::Wanted;
  const bool is_small = options.world_size <= kAllAddressesRanks;
  if (options.rejoining.has_value()) return is_small ? Wanted::kAll : Wanted::kPlanned;
  if (rank_ == Rank(0)) return Wanted::kAll;
  return is_small ? Wanted::kNone : Wanted::kPlanned;
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
  WEFT_RETURN_IF_ERROR(
      options.store->Set(TableKey(options), EncodeTable(members, own_.costs, /*addresses=*/"")));
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

absl::StatusOr<std::string> RankDirectory::ShareTable(const RejoinableOptions& options,
                                                      const JobGroups& job) {
  const std::string key = TableKey(options);
  std::string table;
  const bool has_all = static_cast<int>(job.members.size()) == options.world_size;
  if (has_all && !options.rejoining.has_value()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                          WordsIn(job.members.at(0), Rank(0)));
    WEFT_ASSIGN_OR_RETURN(const planner::CostTable costs, planner::FromWord(words[kCostsWord]));
    const bool is_small = options.world_size <= kAllAddressesRanks;
    table = EncodeTable(job.members, costs, is_small ? EncodeAddresses(job.members) : "");
    if (rank_ == Rank(0)) WEFT_RETURN_IF_ERROR(options.store->Set(key, table));
  } else {
    WEFT_ASSIGN_OR_RETURN(table, ReadTable(options, key));
  }
  WEFT_RETURN_IF_ERROR(Annotate(TakeTable(table), absl::StrCat("key ", key, " of the store")));
  return table;
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
  const int ranks = static_cast<int>(hosts_.size());
  const std::vector<absl::string_view> words = absl::StrSplit(table, ' ');
  if (words.size() <= kBeforePlaces) return absl::DataLossError("no table of hosts");
  WEFT_ASSIGN_OR_RETURN(hosts_, DecodeNumbers(words[kHostsOfTable], ranks));
  WEFT_ASSIGN_OR_RETURN(own_.costs, planner::FromWord(words[kCostsOfTable]));
  WEFT_ASSIGN_OR_RETURN(const std::vector<int> kinds, DecodeNumbers(words[kPlacesOfTable], ranks));
  std::vector<RankPlace> distinct(words.size() - kBeforePlaces);
  for (size_t kind = 0; kind < distinct.size(); ++kind) {
    WEFT_ASSIGN_OR_RETURN(distinct[kind], RankPlaceFromWord(words[kBeforePlaces + kind]));
  }
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    const auto kind = static_cast<size_t>(kinds[rank]);
    if (kind >= distinct.size()) return absl::DataLossError("a place is missing");
    places_[rank] = distinct[kind];
    places_[rank].host = absl::StrCat(hosts_[rank]);
  }
  return absl::OkStatus();
}

absl::StatusOr<RankDirectory::Addresses> RankDirectory::AddressesInTable(
    absl::string_view table) const {
  const std::vector<absl::string_view> words = absl::StrSplit(table, ' ');
  const std::vector<absl::string_view> ranks =
      absl::StrSplit(words[kAddressesOfTable], kBetweenRanks);
  if (ranks.size() != hosts_.size()) return absl::DataLossError("no addresses of all ranks");
  Addresses addresses;
  addresses.reserve(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Rank rank(static_cast<int>(i));
    if (rank == rank_) continue;
    const std::vector<absl::string_view> own = absl::StrSplit(ranks[i], kBetweenTransports);
    if (own.size() != kTransportsMax) return NoValidAddresses(rank);
    WEFT_ASSIGN_OR_RETURN(std::string address,
                          AddressInWord(own[static_cast<size_t>(transport(rank))], rank));
    addresses.emplace_back(rank, std::move(address));
  }
  return addresses;
}

absl::StatusOr<std::string> RankDirectory::AddressIn(const MemberRecord& record, Rank rank) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> words, WordsIn(record, rank));
  return AddressInWord(words[static_cast<size_t>(transport(rank))], rank);
}

absl::StatusOr<std::string> RankDirectory::AddressInWord(absl::string_view word, Rank rank) const {
  std::string address = FromWord(word);
  if (!address.empty()) return address;
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank.value(), " has another setting of \"transport\" than rank ",
                   rank_.value(), " (", wanted_transport_, ")"));
}

}  // namespace weft::collectives
