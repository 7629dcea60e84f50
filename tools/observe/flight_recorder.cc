// PyTorch's Flight Recorder, version 2.10, in pickle's protocol 2 (Lib/pickletools.py). Analysers
// know names of NCCL only, so that is what calls are named after.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/data_type.h"
#include "tools/observe/timeline.h"
#include "tools/observe/valid_utf8.h"

namespace weft::observe {
namespace {

class Pickle {
 public:
  Pickle() { text_ = "\x80\x02"; }
  std::string Finish() { return text_ + '.'; }
  void None() { text_ += 'N'; }
  void Bool(bool value) { text_ += value ? '\x88' : '\x89'; }
  void Int(int64_t value) {
    text_ += "\x8a\x08";  // LONG1 of eight bytes, two's complement
    for (int i = 0; i < 8; ++i) text_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  void Text(absl::string_view value) {
    const std::string text = ValidUtf8(std::string(value));  // else Python reads nothing of it
    text_ += 'X';
    const auto size = static_cast<uint32_t>(text.size());
    for (int i = 0; i < 4; ++i) text_ += static_cast<char>(size >> (8 * i));
    text_ += text;
  }
  void BeginDict() { text_ += "}("; }
  void EndDict() { text_ += 'u'; }
  void BeginList() { text_ += "]("; }
  void EndList() { text_ += 'e'; }
  void EndPair() { text_ += '\x86'; }  // of the last two
  void Key(absl::string_view key) { Text(key); }
  void Item(absl::string_view key, absl::string_view value) { Key(key), Text(value); }
  void Item(absl::string_view key, int64_t value) { Key(key), Int(value); }

 private:
  std::string text_;
};

std::string NcclName(const TimelineRank& rank, const TimelineSpan& span) {
  static const std::map<std::string, std::string> names = {
      {"barrier", "all_reduce_barrier"},
      {"all_gather_v", "all_gather"},
      {"all_gather", "_all_gather_base"},
      {"reduce_scatter", "_reduce_scatter_base"},
      {"all_to_all_v", "all_to_all"}};
  if (span.is_message()) {
    const int own = rank.rank < span.peer ? 0 : 1;  // within the pair
    return span.name == "send" ? absl::StrCat("nccl:send ", own, "->", 1 - own)
                               : absl::StrCat("nccl:recv ", own, "<-", 1 - own);
  }
  const auto known = names.find(span.name);
  return absl::StrCat("nccl:", known == names.end() ? span.name : known->second);
}

// The analyser matches what has one group in its order; messages are matched by their ends and tag,
// so each of these has a group of its two ranks.
std::string GroupName(const TimelineRank& rank, const TimelineSpan& span) {
  if (!span.is_message()) return span.group;
  const bool sends = span.name == "send";
  return absl::StrCat(span.group, " ", sends ? rank.rank : span.peer, "->",
                      sends ? span.peer : rank.rank, " tag ", span.number);
}

std::string TypeName(uint8_t type) {
  using collectives::DataType;
  switch (static_cast<DataType>(type)) {
    case DataType::kFloat32:
      return "Float";
    case DataType::kFloat64:
      return "Double";
    case DataType::kFloat16:
      return "Half";
    case DataType::kBFloat16:
      return "BFloat16";
    case DataType::kInt64:
      return "Long";
    case DataType::kInt32:
      return "Int";
    case DataType::kInt16:
      return "Short";
    case DataType::kInt8:
      return "Char";
    case DataType::kUint8:
      return "Byte";
    case DataType::kBool:
      return "Bool";
    default:
      return "Undefined";
  }
}

void Sizes(const char* key, uint64_t count, Pickle* out) {
  out->Key(key);
  out->BeginList();
  out->BeginList();
  out->Int(static_cast<int64_t>(count));
  out->EndList();
  out->EndList();
}

void Types(const char* key, uint8_t type, Pickle* out) {
  out->Key(key);
  out->BeginList();
  out->Text(TypeName(type));
  out->EndList();
}

void Entry(const TimelineRank& rank, const TimelineSpan& span, size_t size, int64_t number,
           int64_t message_number, Pickle* out) {
  const bool gathers = span.name == "all_gather" || span.name == "all_gather_v";
  const uint64_t part = size == 0 ? span.count : span.count / size;
  out->BeginDict();
  out->Item("record_id", number);
  out->Item("pg_id", 0);
  out->Key("process_group");
  const std::string group = GroupName(rank, span);
  out->Text(group);
  out->Text(group);
  out->EndPair();
  out->Item("collective_seq_id", span.is_message() ? 0 : span.number + 1);
  out->Item("p2p_seq_id", span.is_message() ? message_number : 0);
  out->Item("op_id", number);
  out->Item("profiling_name", NcclName(rank, span));
  out->Item("time_created_ns", span.start_ns);
  out->Item("time_discovered_started_ns", span.start_ns);
  out->Key("time_discovered_completed_ns");
  span.done ? out->Int(span.end_ns) : out->None();
  if (span.done) out->Item("duration_ms", (span.end_ns - span.start_ns) / 1'000'000);
  Sizes("input_sizes", gathers ? part : span.count, out);
  Sizes("output_sizes", span.name == "reduce_scatter" ? part : span.count, out);
  Types("input_dtypes", span.type, out);
  Types("output_dtypes", span.type, out);
  out->Item("state", span.done && span.code == 0 ? "completed" : "started");
  out->Key("retired");
  out->Bool(span.done);
  out->Item("timeout_ms", 0);
  out->Key("is_p2p");
  out->Bool(span.is_message());
  out->Item("thread_id", absl::StrCat(rank.pid));
  out->Item("thread_name", "");
  out->Key("frames");
  out->BeginList();
  out->EndList();
  out->EndDict();
}

void GroupConfig(const Timeline& timeline, const TimelineRank& rank, Pickle* out) {
  std::map<std::string, std::vector<int>> groups;
  for (const auto& [name, ranks] : timeline.groups) {
    if (std::find(ranks.begin(), ranks.end(), rank.rank) != ranks.end()) groups[name] = ranks;
  }
  for (const TimelineSpan& span : rank.spans) {
    if (!span.is_message()) continue;
    groups[GroupName(rank, span)] = {std::min(rank.rank, span.peer),
                                     std::max(rank.rank, span.peer)};
  }
  out->Key("pg_config");
  out->BeginDict();
  for (const auto& [name, ranks] : groups) {
    out->Key(name);
    out->BeginDict();
    out->Item("name", name);
    out->Item("desc", name);
    out->Item("ranks", absl::StrCat("[", absl::StrJoin(ranks, ", "), "]"));
    out->EndDict();
  }
  out->EndDict();
}

}  // namespace

std::string FlightRecorderDump(const Timeline& timeline, const TimelineRank& rank) {
  Pickle out;
  out.BeginDict();
  out.Item("version", "2.10");
  out.Item("comm_lib_version", "weft");
  GroupConfig(timeline, rank, &out);
  out.Key("pg_status");
  out.BeginDict();
  out.EndDict();
  out.Key("entries");
  out.BeginList();
  int64_t number = 0, messages = 0;
  for (const TimelineSpan& span : rank.spans) {
    if (span.is_phase()) continue;
    const auto group = timeline.groups.find(span.group);
    const size_t size = group == timeline.groups.end() ? 0 : group->second.size();
    Entry(rank, span, size, number++, span.is_message() ? ++messages : 0, &out);
  }
  out.EndList();
  out.EndDict();
  return out.Finish();
}

}  // namespace weft::observe
