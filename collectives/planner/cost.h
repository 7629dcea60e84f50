// What communication costs on a machine, and from that the time of a schedule: the alpha-beta-gamma
// model (Hockney 1994; Thakur, Rabenseifner, Gropp, "Optimization of collective communication
// operations in MPICH", 2005, section 3), with three things shared that it takes for granted:
//
//   cores      where ranks outnumber them, the work of all ranks of a host takes its time, and
//              every turn waits until each rank has had the core
//   memory     bytes of all ranks of a host pass through it
//   the wire   bytes of all ranks of a host leave by it
//
// and that by all groups that run at the same time on a host (CollectiveSpec::groups_at_once), each
// of which has as much to do; the wire also by groups along other axes (others_at_once), of which
// the same is assumed:
//
//   time = (turns + posts + in_order) * latency - hidden + fill * byte + the largest of
//          work    messages * message + elements * byte + reduced * reduce + copied * copy,
//                  times the ranks that want a core, over cores, where that is above 1. Inside a
//                  host the receiver reads a message from the sender's memory (byte), or both ends
//                  copy it, each for half of segment_byte, through the link's segment; what is
//                  rewritten there costs a byte more, and one turn. Elements that NICs move are no
//                  work, but take as long on the link
//          memory  elements moved and copied by all ranks of a host, as far as a core's cache
//                  (cache_bytes) does not hold them, * host_byte inside; what goes through segments
//                  in messages of more than half a cache is read from memory once more, for half
//                  of that
//          wire    bytes between hosts * host_byte, across; and where it is known what the cables
//                  between switches carry, the bytes that leave a switch by them; of exchanges
//                  that follow one another, for each the longer of a link's time and a cable's
//          slots   slot_turns * latency + slot_elements * byte, across: where a rank holds few
//                  chunks at once
//
// `hidden` are latencies between hosts, all but one, as far as `ahead` elements take as long.
// Where slots do not hold a pipeline back, its links are full, and fill and slots take `paths`
// times their bytes' time. `fill` passes each hop at the rate of the hop's own link, inside a host
// (fill_inside) or across: a stage that is not a pipeline's slowest adds the time of one chunk.
//
// One table counts for all ranks of a job: rank 0's, which its endpoint hands out at start-up.
#ifndef WEFT_COLLECTIVES_PLANNER_COST_H_
#define WEFT_COLLECTIVES_PLANNER_COST_H_

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "collectives/algorithms/algorithm.h"

namespace weft::collectives::planner {

// Costs of a message between two ranks, in ns.
struct LinkCosts {
  double latency = 0;    // of an empty message
  double message = 0;    // of the cores, for each of many messages, at both ends
  double byte = 0;       // of one link
  double host_byte = 0;  // of all links of a host together
};

struct CostTable {
  LinkCosts inside, across;    // between ranks of one host; of two
  bool across_by_nic = false;  // NICs move the bytes between hosts, and cores do not
  // Inside a host, where links are shared memory: of a byte that both ends copy, one after the
  // other. Messages shorter than `read_bytes` are copied so, longer ones as Cost::staged says. 0:
  // no link has a segment.
  double segment_byte = 0;
  int64_t read_bytes = 0;
  int64_t inside_eager_bytes = 0;  // as eager_bytes, between ranks of a host
  double reduce_byte = 0;          // of an operand, in cache, on top of moving it
  double copy_byte = 0;
  double switch_rank = 0;        // from one rank to another on a core
  double cache_bytes = 0;        // of one core: what a rank finds there of what it has just written
  int cores = 1;                 // of a host, for all its ranks
  int64_t chunk_bytes = 262144;  // collective.chunk_bytes
  int64_t eager_bytes = 0;       // messages between hosts up to this long do not wait for their
                                 // receives, so that `in_order` costs nothing
  std::string source;            // "defaults", or the file; one line
};

// What a link between hosts costs: as measured, with the rates of the group's own NICs where they
// are known. No byte of a link is faster than its NIC, and the NICs of a host are the wire that it
// leaves by.
LinkCosts AcrossCosts(const CostTable& table, const GroupPlace* place);
// Messages that the busiest rank sends to, or receives from, other hosts: whole, so that those of
// equal plans are equal.
int64_t MessagesAcross(const Cost& cost);

// Nanoseconds, whole: the same on every rank.
struct Time {
  int64_t overlapped = 0;  // by the formula above
  int64_t in_turn = 0;     // were work, memory, links, NICs and switches' cables not used at once
};
// `element` in bytes. 0 ranks or counts are fine.
Time TimesOf(const Cost& cost, const CollectiveSpec& spec, size_t element, const CostTable& table);
inline int64_t TimeOf(const Cost& cost, const CollectiveSpec& spec, size_t element,
                      const CostTable& table) {
  return TimesOf(cost, spec, element, table).overlapped;
}

// ---- What was measured on a machine, by transport: what `weft-bw --calibrate` writes.

inline constexpr int kTransportCount = 5;
inline constexpr std::array<const char*, kTransportCount> kTransportNames = {"shm", "tcp", "ucx",
                                                                             "verbs", "multipath"};

struct Calibration {
  std::array<LinkCosts, kTransportCount> links;  // as kTransportNames
  double segment_byte = 0;                       // of shm
  double reduce_byte = 0, copy_byte = 0, switch_rank = 0;
  double cache_kib = 0;  // KiB of a core's second-level cache, as the kernel says, not measured
  std::string source;
};

// Measured on two cores of an AMD EPYC 9005 (KVM), Linux 6.18; tcp over loopback. The transports
// over a network have tcp's, with the latencies and rates of 100 Gbit/s NICs. A core of that
// machine has a second-level cache of 1 MiB, which also counts where a kernel names none.
const Calibration& DefaultCalibration();

// Lines "shm.latency 350", in ns but for cache_kib. Unknown names, missing ones and values that are
// no positive numbers are errors that name line and file.
std::string ToText(const Calibration& calibration);
absl::StatusOr<Calibration> ParseCalibration(absl::string_view text, absl::string_view file);

// Where the calibration of this machine is kept: in $XDG_CACHE_HOME or ~/.cache, under the name of
// its processors and their number. Empty without a home.
std::string CalibrationFile();
// What the setting collective.costs says: a file; or, empty, CalibrationFile() where there is
// one that can be read, else the defaults.
absl::StatusOr<Calibration> LoadCalibration(const Settings& settings);
// Whether SaveCalibration() can write there; makes the folder.
absl::Status CheckWritable(const std::string& file);
// Its numbers by their names in the file; Fields: to be changed.
std::vector<std::pair<std::string, double>> Numbers(const Calibration& calibration);
std::vector<std::pair<std::string, double*>> Fields(Calibration& calibration);
// Written whole or not at all.
absl::Status SaveCalibration(const Calibration& calibration, const std::string& file);

// The table for a job with these settings: transport, collective.chunk_bytes.
CostTable TableFor(const Calibration& calibration, const Settings& settings, int cores);
// The table of rank 0: of LoadCalibration() and `cores`; with collective.deterministic of the
// defaults, and of as many cores as there are ranks. An error of the file is one in both cases.
// Without `has_peers` nobody's memory is read: nothing is tried (ReadingPays), and nothing planned.
absl::StatusOr<CostTable> LoadTable(const Settings& settings, int cores, bool has_peers = true);
// As one word, for the exchange between ranks.
std::string ToWord(const CostTable& table);
absl::StatusOr<CostTable> FromWord(absl::string_view word);

}  // namespace weft::collectives::planner

#endif  // WEFT_COLLECTIVES_PLANNER_COST_H_
