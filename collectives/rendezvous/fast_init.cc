#include "collectives/rendezvous/fast_init.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/little_endian.h"
#include "base/status.h"

namespace weft::collectives {

using topology::JobRank;
using topology::Mesh;
using topology::MeshAxis;
using topology::MeshGroup;

namespace {

bool TakeBytes(absl::string_view& bytes, size_t size, std::string* out) {
  if (bytes.size() < size) return false;
  *out = std::string(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return true;
}

bool TakeShort(absl::string_view& bytes, std::string* out) {
  uint16_t size = 0;
  return TakeLittle(bytes, &size) && TakeBytes(bytes, size, out);
}

absl::StatusOr<MemberRecord> OwnRecord(const FastInitOptions& options) {
  MemberRecord own;
  own.generation = options.generation;
  own.host = options.host;
  own.address = options.address;
  if (!options.make_unique_id) return own;
  int count = UniqueIdsOfRank(options.mesh, options.rank, options.ranks_per_root);
  for (int i = 0; i < count; ++i) {
    WEFT_ASSIGN_OR_RETURN(std::string id, options.make_unique_id());
    if (id.size() != kUniqueIdBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a unique id of ", id.size(), " bytes; right are ", kUniqueIdBytes));
    }
    own.unique_ids.push_back(std::move(id));
  }
  return own;
}

// This rank's groups. `members`: itself and RanksWanted().
absl::StatusOr<JobGroups> Assemble(const FastInitOptions& options,
                                   std::map<int, MemberRecord> members) {
  JobGroups job;
  job.members = std::move(members);
  std::vector<MeshGroup> groups = options.mesh.GroupsOf(JobRank(options.rank));
  job.connections = PlanConnections(groups);
  job.versions.assign(groups.size(), 0);
  for (MeshGroup& group : groups) {
    JobGroup with_ids;
    if (options.make_unique_id) {
      for (const UniqueIdSlot& slot : UniqueIdSlots(options.mesh, group, options.ranks_per_root)) {
        const auto& ids = job.members[slot.root].unique_ids;
        if (static_cast<size_t>(slot.offset) >= ids.size()) {
          return absl::InternalError(absl::StrCat("rank ", slot.root, " made ", ids.size(),
                                                  " unique ids, number ", slot.offset,
                                                  " is missing; is its layout another?"));
        }
        with_ids.unique_ids.push_back(ids[static_cast<size_t>(slot.offset)]);
      }
    }
    with_ids.group = std::move(group);
    job.groups.push_back(std::move(with_ids));
  }
  return job;
}

std::vector<int> RanksWanted(const FastInitOptions& options) {
  if (options.wanted == FastInitOptions::Wanted::kNone) return {};
  if (options.wanted == FastInitOptions::Wanted::kAll) {
    std::vector<int> others = RankSet::Below(options.mesh.ranks()).ranks();
    std::erase(others, options.rank);
    return others;
  }
  return RecordsWanted(options.mesh, options.rank, options.ranks_per_root,
                       options.make_unique_id != nullptr)
      .ranks();
}

absl::Status CheckRank(const FastInitOptions& options, int rank) {
  if (rank >= 0 && rank < options.mesh.ranks()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not of layout ",
                                                 options.mesh.ToText(), ", which has ",
                                                 options.mesh.ranks()));
}

}  // namespace

// ---- Records

std::string EncodeMember(const MemberRecord& member) {
  std::string out;
  PutLittle(out, member.generation);
  for (const std::string* text : {&member.host, &member.address}) {
    const auto size = static_cast<uint16_t>(std::min<size_t>(text->size(), UINT16_MAX));
    PutLittle(out, size);
    out.append(*text, 0, size);
  }
  out.push_back(static_cast<char>(member.unique_ids.size()));
  for (const std::string& id : member.unique_ids) out += id;
  return out;
}

absl::StatusOr<MemberRecord> DecodeMember(absl::string_view bytes) {
  MemberRecord member;
  bool ok = TakeLittle(bytes, &member.generation) && TakeShort(bytes, &member.host) &&
            TakeShort(bytes, &member.address) && !bytes.empty();
  if (ok) {
    size_t ids = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    member.unique_ids.resize(ids);
    for (std::string& id : member.unique_ids) ok = ok && TakeBytes(bytes, kUniqueIdBytes, &id);
  }
  if (ok && bytes.empty()) return member;
  return absl::InvalidArgumentError("malformed record of a rank; is another version at work?");
}

std::string EncodeReplacement(const std::map<int, MemberRecord>& members) {
  std::string out;
  for (const auto& [rank, member] : members) {
    std::string record = EncodeMember(member);
    PutLittle(out, rank);
    PutLittle(out, static_cast<int32_t>(record.size()));
    out += record;
  }
  return out;
}

absl::StatusOr<std::map<int, MemberRecord>> DecodeReplacement(absl::string_view bytes) {
  std::map<int, MemberRecord> members;
  while (!bytes.empty()) {
    int32_t rank = 0;
    int32_t size = 0;
    std::string record;
    if (!TakeLittle(bytes, &rank) || !TakeLittle(bytes, &size) || size < 0 ||
        !TakeBytes(bytes, static_cast<size_t>(size), &record)) {
      return absl::InvalidArgumentError("malformed record of replaced ranks");
    }
    WEFT_ASSIGN_OR_RETURN(members[rank], DecodeMember(record));
  }
  return members;
}

// ---- Who does what

namespace {

// Whether a rank begins a block of its group along the axis, and so makes the block's id.
bool IsRoot(const Mesh& mesh, int rank, topology::Axis axis, int ranks_per_root) {
  return mesh.CoordinateOf(JobRank(rank), axis) % ranks_per_root == 0;
}

}  // namespace

int UniqueIdsOfRank(const Mesh& mesh, int rank, int ranks_per_root) {
  int count = 0;
  for (const MeshAxis& one : mesh.axes()) {
    if (IsRoot(mesh, rank, one.axis, ranks_per_root)) ++count;
  }
  return count;
}

std::vector<UniqueIdSlot> UniqueIdSlots(const Mesh& mesh, const MeshGroup& group,
                                        int ranks_per_root) {
  std::vector<UniqueIdSlot> slots;
  for (size_t i = 0; i < group.members.size(); i += static_cast<size_t>(ranks_per_root)) {
    int root = group.members[i].value();
    int offset = 0;
    for (const MeshAxis& one : mesh.axes()) {
      if (group.axes.Has(one.axis)) break;
      if (IsRoot(mesh, root, one.axis, ranks_per_root)) ++offset;
    }
    slots.push_back({root, offset});
  }
  return slots;
}

std::vector<PlannedConnection> PlanConnections(const std::vector<MeshGroup>& groups) {
  std::vector<PlannedConnection> plan;
  std::set<int> known;
  for (const MeshGroup& group : groups) {
    auto size = static_cast<int>(group.members.size());
    if (size < 2) continue;
    int next = (group.position + 1) % size;
    int previous = (group.position + size - 1) % size;
    auto add = [&](int position, int dialer) {
      int peer = group.members[static_cast<size_t>(position)].value();
      // The last edge of an odd ring joins two even positions: a round of its own.
      int round = dialer % 2 == 0 && dialer != size - 1 ? 0 : dialer % 2 == 1 ? 1 : 2;
      if (known.insert(peer).second) plan.push_back({peer, round, dialer == group.position});
    };
    add(next, size == 2 ? 0 : group.position);  // two ranks have one edge
    add(previous, previous);
  }
  std::stable_sort(plan.begin(), plan.end(),
                   [](const auto& a, const auto& b) { return a.round < b.round; });
  return plan;
}

std::string GroupKey(absl::string_view prefix, const MeshGroup& group) {
  return absl::StrCat(prefix, "/group/", Brief(group.axes), "/", group.index);
}

namespace {

std::string RejoinKey(const FastInitOptions& options) {
  return absl::StrCat(options.prefix, "/rejoin/", options.round);
}
std::string NewsKey(const FastInitOptions& options) {
  return absl::StrCat(options.prefix, "/replaced/", options.round);
}

}  // namespace

std::string RecordsKey(absl::string_view prefix) { return absl::StrCat(prefix, "/exchange"); }

std::string RecordKey(absl::string_view prefix, int rank) {
  return ExchangedKey(RecordsKey(prefix), rank);
}

ReplacementNews NewsOf(absl::string_view prefix, const Mesh& mesh,
                       const std::map<int, MemberRecord>& replaced) {
  ReplacementNews news;
  std::set<std::string> groups;
  for (const auto& [rank, member] : replaced) {
    news.keys.push_back(RecordKey(prefix, rank));
    news.values.push_back(EncodeMember(member));
    for (const MeshGroup& group : mesh.GroupsOf(JobRank(rank))) {
      groups.insert(GroupKey(prefix, group));
    }
  }
  news.values.insert(news.values.end(), groups.size(), EncodeReplacement(replaced));
  news.keys.insert(news.keys.end(), groups.begin(), groups.end());
  return news;
}

RankSet RecordsWanted(const Mesh& mesh, int rank, int ranks_per_root, bool ids) {
  std::vector<MeshGroup> groups = mesh.GroupsOf(JobRank(rank));
  std::vector<PlannedConnection> plan = PlanConnections(groups);
  std::vector<int> wanted;
  wanted.reserve(plan.size() + groups.size());
  for (const PlannedConnection& planned : plan) wanted.push_back(planned.peer);
  for (const MeshGroup& group : groups) {
    if (!ids) break;
    for (const UniqueIdSlot& slot : UniqueIdSlots(mesh, group, ranks_per_root)) {
      if (slot.root != rank) wanted.push_back(slot.root);
    }
  }
  return RankSet(wanted);
}

// ---- The exchange

absl::StatusOr<JobGroups> CreateGroups(Store& store, const FastInitOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckRank(options, options.rank));
  WEFT_ASSIGN_OR_RETURN(MemberRecord own, OwnRecord(options));
  std::vector<int> wanted = RanksWanted(options);
  WEFT_ASSIGN_OR_RETURN(
      std::vector<std::string> records,
      store.Exchange(RecordsKey(options.prefix), options.rank, options.mesh.ranks(),
                     EncodeMember(own), RankSet(wanted), options.timeout));
  std::map<int, MemberRecord> members;
  members[options.rank] = std::move(own);
  for (size_t i = 0; i < wanted.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(members[wanted[i]], DecodeMember(records[i]));
  }
  return Assemble(options, std::move(members));
}

absl::StatusOr<std::map<int, MemberRecord>> FindMembers(Store& store,
                                                        const FastInitOptions& options,
                                                        const RankSet& ranks) {
  const std::vector<int> wanted = ranks.ranks();
  std::vector<std::string> keys;
  for (int rank : wanted) {
    WEFT_RETURN_IF_ERROR(CheckRank(options, rank));
    keys.push_back(RecordKey(options.prefix, rank));
  }
  auto records = store.MultiGet(keys, options.timeout);
  if (!records.ok()) {
    return NameMissing(store, records.status(), "look up records of ranks", wanted, keys);
  }
  std::map<int, MemberRecord> members;
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto member = DecodeMember((*records)[i]);
    if (!member.ok()) return Annotate(member.status(), absl::StrCat("rank ", wanted[i]));
    members[wanted[i]] = *std::move(member);
  }
  return members;
}

namespace {

absl::StatusOr<std::string> NoteOf(Store& store, const FastInitOptions& options,
                                   const std::map<int, MemberRecord>& now,
                                   const ReplacementNote& note) {
  if (!note) return std::string();
  std::vector<int> ranks;
  for (const auto& [rank, member] : now) ranks.push_back(rank);
  WEFT_ASSIGN_OR_RETURN(const auto before, FindMembers(store, options, RankSet(ranks)));
  return note(before, now);
}

// By the first of the replaced ranks, for all.
absl::Status Announce(Store& store, const FastInitOptions& options,
                      const std::map<int, MemberRecord>& members, const ReplacementNote& note) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, NoteOf(store, options, members, note));
  ReplacementNews news = NewsOf(options.prefix, options.mesh, members);
  std::string value;
  PutLittle(value, static_cast<int32_t>(text.size()));
  news.keys.push_back(NewsKey(options));
  news.values.push_back(absl::StrCat(value, text, EncodeReplacement(members)));
  return store.MultiSet(news.keys, news.values);
}

}  // namespace

absl::StatusOr<Replacement> ReadReplacement(Store& store, const FastInitOptions& options) {
  const auto value = store.Get(NewsKey(options), options.timeout);
  if (!value.ok()) return Annotate(value.status(), "wait for the records of the replaced ranks");
  absl::string_view bytes = *value;
  int32_t size = 0;
  Replacement news;
  if (!TakeLittle(bytes, &size) || size < 0 ||
      !TakeBytes(bytes, static_cast<size_t>(size), &news.note)) {
    return absl::InvalidArgumentError("malformed news of replaced ranks");
  }
  WEFT_ASSIGN_OR_RETURN(news.members, DecodeReplacement(bytes));
  return news;
}

absl::StatusOr<JobGroups> RejoinGroups(Store& store, const FastInitOptions& options,
                                       const std::vector<int>& replaced,
                                       const ReplacementNote& note) {
  WEFT_RETURN_IF_ERROR(CheckRank(options, options.rank));
  auto place = std::find(replaced.begin(), replaced.end(), options.rank);
  if (place == replaced.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not among the replaced ranks"));
  }
  WEFT_ASSIGN_OR_RETURN(MemberRecord own, OwnRecord(options));
  WEFT_ASSIGN_OR_RETURN(
      std::vector<std::string> records,
      store.AllGather(RejoinKey(options), static_cast<int>(place - replaced.begin()),
                      static_cast<int>(replaced.size()), EncodeMember(own), options.timeout));
  std::map<int, MemberRecord> members;
  for (size_t i = 0; i < replaced.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(members[replaced[i]], DecodeMember(records[i]));
  }
  if (place == replaced.begin()) {
    WEFT_RETURN_IF_ERROR(Announce(store, options, members, note));
  }
  std::vector<int> others = RanksWanted(options);
  std::erase_if(others, [&](int rank) { return members.count(rank) != 0; });
  std::vector<std::string> keys;
  keys.reserve(others.size());
  for (int rank : others) keys.push_back(RecordKey(options.prefix, rank));
  WEFT_ASSIGN_OR_RETURN(records, store.MultiGet(keys, options.timeout));
  for (size_t i = 0; i < others.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(members[others[i]], DecodeMember(records[i]));
  }
  return Assemble(options, std::move(members));
}

absl::StatusOr<std::vector<int>> AwaitReplacement(Store& store, const FastInitOptions& options,
                                                  JobGroups& job, int axis,
                                                  absl::Duration timeout) {
  auto index = static_cast<size_t>(axis);
  if (index >= job.groups.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no axis ", axis));
  }
  JobGroup& group = job.groups[index];
  std::string key = GroupKey(options.prefix, group.group);
  WEFT_ASSIGN_OR_RETURN(StoreWatched watched, store.Watch(key, job.versions[index], timeout));
  job.versions[index] = watched.version;
  WEFT_ASSIGN_OR_RETURN(auto fresh, DecodeReplacement(watched.value.value_or("")));
  std::vector<int> replaced;
  for (auto& [rank, member] : fresh) {
    auto known = job.members.find(rank);
    bool later = known != job.members.end() && member.generation > known->second.generation;
    if (later) known->second = member;
    if (std::binary_search(group.group.members.begin(), group.group.members.end(), JobRank(rank))) {
      replaced.push_back(rank);
    }
  }
  if (!options.make_unique_id) return replaced;
  auto slots = UniqueIdSlots(options.mesh, group.group, options.ranks_per_root);
  for (size_t i = 0; i < slots.size() && i < group.unique_ids.size(); ++i) {
    const auto& ids = job.members[slots[i].root].unique_ids;
    if (static_cast<size_t>(slots[i].offset) < ids.size()) {
      group.unique_ids[i] = ids[static_cast<size_t>(slots[i].offset)];
    }
  }
  return replaced;
}

absl::StatusOr<PhaseReport> ReportPhases(
    Store& store, const FastInitOptions& options,
    const std::vector<std::pair<std::string, absl::Duration>>& phases) {
  std::string text = options.host;
  for (const auto& [name, took] : phases) {
    absl::StrAppend(&text, "\n", name, " ", absl::ToInt64Nanoseconds(took));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all,
                        store.Gather(absl::StrCat(options.prefix, "/phases/", options.generation),
                                     options.rank, options.mesh.ranks(), 0, text, options.timeout));
  PhaseReport report;
  std::vector<std::vector<double>> times(phases.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<std::string> lines = absl::StrSplit(all[rank], '\n');
    for (size_t i = 0; i < phases.size(); ++i) {
      std::pair<std::string, std::string> parts;
      int64_t ns = 0;
      if (i + 1 < lines.size()) parts = absl::StrSplit(lines[i + 1], absl::MaxSplits(' ', 1));
      if (parts.first != phases[i].first || !absl::SimpleAtoi(parts.second, &ns)) {
        return absl::InternalError(
            absl::StrCat("rank ", rank, " reports other phases than rank 0"));
      }
      if (rank == 0) report.phases.push_back({phases[i].first, 0, 0, -1, 0, ""});
      double seconds = static_cast<double>(ns) * 1e-9;
      times[i].push_back(seconds);
      PhaseReport::Phase& phase = report.phases[i];
      if (seconds > phase.max) {
        phase.max = seconds;
        phase.slowest = static_cast<int>(rank);
        phase.host = lines[0];
      }
    }
  }
  for (size_t i = 0; i < report.phases.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    report.phases[i].p50 = times[i][times[i].size() / 2];
    report.phases[i].p99 = times[i][(times[i].size() - 1) * 99 / 100];
  }
  return report;
}

}  // namespace weft::collectives
