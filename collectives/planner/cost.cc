#include "collectives/planner/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "collectives/algorithms/unplanned.h"
#include "collectives/group_place.h"
#include "net/shm/peer_memory.h"

namespace weft::collectives::planner {
namespace {

constexpr int64_t kNeverRead = std::numeric_limits<int64_t>::max();

double ElementsBeyond(const Cost& cost, const CollectiveSpec& spec) {
  const GroupPlace* place = spec.place.get();
  if (place == nullptr || place->switches.size() < 2) return 0;
  if (cost.elements_beyond >= 0) return cost.elements_beyond;
  const double hosts = static_cast<double>(place->hosts.size()), near = place->hosts_max;
  const bool exchanges =
      spec.kind == CollectiveKind::kAllToAll || spec.kind == CollectiveKind::kAllToAllV;
  return cost.elements_across * near * (hosts - near) / (hosts - 1) *
         (exchanges ? 1 : UnplannedLoad(place));  // exchanges have plans of their own
}

// ns of the cables out of a switch, for a byte; 0: not known.
double SwitchByte(const CollectiveSpec& spec) {
  const double rate = spec.place == nullptr ? 0 : spec.place->switch_rate;
  return rate > 0 ? 1e9 / rate : 0;
}

// Elements that the busiest rank sends to other hosts.
double Away(const Cost& cost) { return std::min(cost.elements_across / cost.lanes, cost.elements); }

// The share of the busiest rank's messages that go to other hosts.
double ShareAcross(const Cost& cost) {
  if (cost.elements > 0) return Away(cost) / cost.elements;
  return cost.turns > 0 ? cost.turns_across / cost.turns : 0;
}

}  // namespace

LinkCosts AcrossCosts(const CostTable& table, const GroupPlace* place) {
  LinkCosts across = table.across;
  if (place == nullptr) return across;
  if (place->nic_rate > 0) across.byte = std::max(across.byte, 1e9 / place->nic_rate);
  if (place->host_rate > 0) across.host_byte = 1e9 / place->host_rate;
  return across;
}

int64_t MessagesAcross(const Cost& cost) { return std::llround(cost.messages * ShareAcross(cost)); }

Time TimesOf(const Cost& cost, const CollectiveSpec& spec, size_t element, const CostTable& table) {
  const double bytes = static_cast<double>(element);
  const LinkCosts across = AcrossCosts(table, spec.place.get());
  const double ranks = spec.place == nullptr ? spec.size : spec.place->ranks_max;
  const double cores = table.cores, at_once = spec.groups_at_once;
  const double on_wire = at_once + spec.others_at_once;
  const double away = Away(cost), share = ShareAcross(cost);
  const double message = (1 - share) * table.inside.message + share * across.message;
  // The work of all ranks together counts each byte once. The busiest rank's own work counts,
  // inside a host, the bytes that it receives, since the receiver copies them.
  const double kept = cost.elements - away, left = away * across.byte;
  const double own = cost.received < 0 || cost.elements == 0
                         ? kept
                         : std::min(kept, cost.received * kept / cost.elements);
  const double message_bytes = cost.messages > 0 ? cost.elements / cost.messages * bytes : 0;
  // A message inside a host is read where it lies, or copied by both ends; the busiest rank of a
  // collective with a root has as much to do at its other end as the average rank.
  const bool is_short = message_bytes < static_cast<double>(table.read_bytes);
  const bool has_segment = table.segment_byte > 0 && !cost.writes_once;
  const double staged = !has_segment ? 0 : is_short ? 1 : cost.staged;
  const double read_byte = (1 - staged) * table.inside.byte;
  const double end_byte = staged * table.segment_byte / 2;
  const double own_inside =
      (own * read_byte + kept * (1 + std::min(cost.balance, 1.0)) * end_byte) * bytes;
  const double all_inside = kept * (read_byte + 2 * end_byte) * bytes;
  const double rewritten = table.segment_byte > 0 ? (1 - share) * cost.rewritten : 0;
  const double rest = (cost.reduced * table.reduce_byte + cost.copied * table.copy_byte +
                       rewritten * table.inside.byte) *
                      bytes;
  const double link = left * bytes;
  const double messages = cost.writes_once ? std::min(cost.messages, 1.0) : cost.messages;
  const double besides = messages * message + (table.across_by_nic ? 0 : link) + rest;
  const double work = std::max(besides + own_inside,
                               (besides + all_inside) * at_once * ranks * cost.balance / cores);
  // With a root, it is the root that copies.
  const double copied = HasRoot(spec.kind) ? cost.copied : cost.copied * ranks;
  const double inside_host =
      std::max(cost.elements * cost.balance * ranks - cost.elements_across, 0.0);
  const double again = 2 * message_bytes > table.cache_bytes ? staged / 2 : 0;  // source and target
  const double shared = (inside_host * (1 + again) + copied) * bytes * at_once;
  const double memory = std::max(shared - table.cache_bytes, 0.0) * table.inside.host_byte;
  const double nics = cost.elements_across * across.host_byte * bytes * on_wire;
  const double cables = ElementsBeyond(cost, spec) * SwitchByte(spec) * bytes * on_wire;
  const double wire = std::max(nics, cables);

  double exchanged = 0;
  for (const Cost::Exchange& one : cost.exchanges) {
    exchanged +=
        std::max(one.elements * across.byte, one.beyond * SwitchByte(spec) * on_wire) * bytes;
  }

  const bool asks = has_segment && message_bytes > static_cast<double>(table.inside_eager_bytes);
  const double posts = asks ? cost.posts : 0;
  const double inside = cost.turns - cost.turns_across + posts + (rewritten > 0 ? 1 : 0);
  const double wanting = ranks * at_once;  // a core
  const double waiting = wanting > cores ? wanting / cores * table.switch_rank : 0;
  const bool waits = message_bytes > static_cast<double>(table.eager_bytes);  // for receives
  const double in_order = waits ? cost.in_order : 0;
  const double turns_across = cost.turns_across + in_order;
  const double latency = inside * table.inside.latency + turns_across * across.latency +
                         (cost.turns + posts) * waiting;
  const double hidden =
      std::min(std::max(turns_across - 1, 0.0) * across.latency, cost.ahead * bytes * across.byte);
  const double slot_latency = waits ? cost.slot_turns * across.latency : 0;
  const double slot_link = waits ? cost.slot_elements * bytes * across.byte : 0;
  const double paths = std::max(link, wire) >= slot_latency + slot_link ? cost.paths : 1;
  const double slots = slot_latency + paths * slot_link;
  // A stage that does not bound the pipeline adds the time of one chunk, at its own link's rate.
  const double fill_inside = cost.turns_across > 0 ? cost.fill_inside : cost.fill;
  const double fill_across = cost.fill - fill_inside;
  const double fill = (fill_inside * table.inside.byte + fill_across * across.byte * paths) * bytes;
  const double before = latency + fill;
  return {
      .overlapped =
          std::llround(before - hidden + std::max({work, memory, wire, link, slots, exchanged})),
      .in_turn = std::llround(before + work + memory + nics + cables + std::max(link, exchanged))};
}

CostTable TableFor(const Calibration& calibration, const Settings& settings, int cores) {
  const std::string& transport = settings.Text("transport");
  auto links = [&](absl::string_view name) {
    for (size_t t = 0; t < kTransportNames.size(); ++t) {
      if (name == kTransportNames[t]) return calibration.links[t];
    }
    return calibration.links[1];
  };
  CostTable table;
  table.inside = links(transport == "auto" ? "shm" : transport);
  table.across = links(transport == "auto" ? "tcp" : transport);
  table.across_by_nic = transport == "verbs" || transport == "ucx";
  if (transport == "auto" || transport == "shm") {
    table.segment_byte = calibration.segment_byte;
    const int64_t from = settings.ByteCount("shm.single_copy_min").count();
    const bool reads = from > 0 && settings.Text("shm.single_copy") != "off";
    table.read_bytes = reads ? from : kNeverRead;
    table.inside_eager_bytes = settings.ByteCount("shm.eager_max").count();
  }
  table.reduce_byte = calibration.reduce_byte;
  table.copy_byte = calibration.copy_byte;
  table.switch_rank = calibration.switch_rank;
  table.cache_bytes = calibration.cache_kib * 1024;
  table.cores = cores;
  table.chunk_bytes = settings.ByteCount("collective.chunk_bytes").count();
  if (transport == "verbs") table.eager_bytes = settings.ByteCount("verbs.eager_max").count();
  table.source = calibration.source;
  return table;
}

absl::StatusOr<CostTable> LoadTable(const Settings& settings, int cores, bool has_peers) {
  WEFT_ASSIGN_OR_RETURN(const Calibration calibration, LoadCalibration(settings));
  if (!settings.Bool("collective.deterministic")) {
    CostTable table = TableFor(calibration, settings, cores);
    const bool asks = table.segment_byte > 0 && table.read_bytes != kNeverRead &&
                      settings.Text("shm.single_copy") == "auto";
    if (!has_peers || (asks && !net::shm::ReadingPays())) table.read_bytes = kNeverRead;
    return table;
  }
  constexpr int kEnough = 1 << 20;  // cores: ranks never share one
  CostTable table = TableFor(DefaultCalibration(), settings, kEnough);
  table.source = "defaults, by collective.deterministic";
  return table;
}

std::string ToWord(const CostTable& table) {
  std::string text;
  for (const LinkCosts* link : {&table.inside, &table.across}) {
    absl::StrAppendFormat(&text, "%a,%a,%a,%a,", link->latency, link->message, link->byte,
                          link->host_byte);
  }
  absl::StrAppendFormat(&text, "%a,%a,%a,%a,%a,%d,%d,%d,%d,%d,%d,", table.segment_byte,
                        table.reduce_byte, table.copy_byte, table.switch_rank, table.cache_bytes,
                        table.cores, table.chunk_bytes, table.eager_bytes, table.inside_eager_bytes,
                        table.read_bytes, table.across_by_nic ? 1 : 0);
  return absl::StrCat(text, absl::BytesToHexString(table.source));
}

absl::StatusOr<CostTable> FromWord(absl::string_view word) {
  constexpr size_t kNumbers = 13;
  CostTable table;
  double* const numbers[kNumbers] = {
      &table.inside.latency, &table.inside.message, &table.inside.byte, &table.inside.host_byte,
      &table.across.latency, &table.across.message, &table.across.byte, &table.across.host_byte,
      &table.segment_byte,   &table.reduce_byte,    &table.copy_byte,   &table.switch_rank,
      &table.cache_bytes};
  const std::vector<std::string> parts = absl::StrSplit(word, ',');
  bool right = parts.size() == kNumbers + 7;
  for (size_t i = 0; right && i < kNumbers; ++i) {
    char* end = nullptr;
    *numbers[i] = std::strtod(parts[i].c_str(), &end);
    right = end != parts[i].c_str() && *end == '\0' && *numbers[i] >= 0;
  }
  if (!right || !absl::SimpleAtoi(parts[kNumbers], &table.cores) || table.cores < 1 ||
      !absl::SimpleAtoi(parts[kNumbers + 1], &table.chunk_bytes) || table.chunk_bytes < 1 ||
      !absl::SimpleAtoi(parts[kNumbers + 2], &table.eager_bytes) || table.eager_bytes < 0 ||
      !absl::SimpleAtoi(parts[kNumbers + 3], &table.inside_eager_bytes) ||
      table.inside_eager_bytes < 0 || !absl::SimpleAtoi(parts[kNumbers + 4], &table.read_bytes) ||
      table.read_bytes < 0) {
    return absl::DataLossError(
        absl::StrCat("rank 0 published no valid table of costs: \"", absl::CHexEscape(word), "\""));
  }
  table.across_by_nic = parts[kNumbers + 5] == "1";
  table.source = absl::HexStringToBytes(parts[kNumbers + 6]);
  return table;
}

}  // namespace weft::collectives::planner
