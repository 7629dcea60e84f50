#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tools/sim/report.h"

namespace weft::sim {
namespace {

using topology::Operation;
using topology::OperationKind;

// More would be slow to open; the first in order of the workload are written.
constexpr int64_t kMaxEvents = 1'000'000;

std::string NameOf(const Run& run, const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kTransfer:
      return absl::StrCat("to ", run.fabric->node(operation.target.host).name, ", ",
                          ToString(operation.bytes));
    case OperationKind::kCompute:
      return "compute";
    case OperationKind::kRing:
      return absl::StrCat("ring of ", run.workload->ring(operation.ring).size());
    default:
      return "join";
  }
}

}  // namespace

absl::Status WriteTimeline(const Run& run, const std::string& path) {
  std::ofstream file(path);
  if (!file) return ErrnoStatus(errno, absl::StrCat("write ", path));
  file << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  int64_t events = 0;
  std::vector<char> named(static_cast<size_t>(run.fabric->nodes()), 0);
  for (topology::OperationId id = 0; id < run.workload->size() && events < kMaxEvents; ++id) {
    const Operation& operation = run.workload->operation(id);
    const topology::OperationResult& result = run.result.operations[id];
    bool is_ended = result.ended < absl::InfiniteDuration();
    if (!is_ended || operation.kind == OperationKind::kJoin) continue;
    topology::Endpoint where = operation.kind == OperationKind::kRing
                                   ? run.workload->ring(operation.ring)[0]
                                   : operation.source;
    if (!named[where.host.index()]) {
      named[where.host.index()] = 1;
      file << (events++ > 0 ? ",\n" : "\n")
           << absl::StrFormat(R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"%s"}})",
                              where.host.value(), run.fabric->node(where.host).name);
    }
    file << (events++ > 0 ? ",\n" : "\n")
         << absl::StrFormat(
                R"({"ph":"X","name":"%s","cat":"%s","pid":%d,"tid":%d,"ts":%.6f,"dur":%.6f})",
                NameOf(run, operation), run.workload->group(operation.group), where.host.value(),
                where.nic, absl::ToDoubleMicroseconds(result.started),
                absl::ToDoubleMicroseconds(result.ended - result.started));
  }
  file << "\n]}\n";
  file.close();
  if (!file) return ErrnoStatus(errno, absl::StrCat("write ", path));
  return absl::OkStatus();
}

}  // namespace weft::sim
