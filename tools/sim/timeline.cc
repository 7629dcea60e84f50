#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/write_file.h"
#include "tools/sim/report.h"

namespace weft::sim {
namespace {

using topology::Operation;
using topology::OperationKind;

// More would be slow to open; the first in order of the workload are written.
constexpr int64_t kMaxEvents = 1'000'000;

class Trace {
 public:
  explicit Trace(std::ostream& out) : out_(out) {
    out_ << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  }
  ~Trace() { out_ << "\n]}\n"; }
  bool is_full() const { return events_ >= kMaxEvents; }
  void Add(const std::string& event) { out_ << (events_++ > 0 ? ",\n" : "\n") << event; }
  void NameProcess(int id, absl::string_view name) {
    Add(absl::StrFormat(R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"%s"}})", id,
                        name));
  }
  // `category`: any text, as the path of a traffic list.
  void AddSpan(absl::string_view name, absl::string_view category, int process, int thread,
               absl::Duration from, absl::Duration to) {
    Add(absl::StrFormat(R"({"ph":"X","name":"%s","cat":%s,"pid":%d,"tid":%d,"ts":%.6f,"dur":%.6f})",
                        name, JsonText(nlohmann::json(std::string(category))), process, thread,
                        absl::ToDoubleMicroseconds(from), absl::ToDoubleMicroseconds(to - from)));
  }

 private:
  std::ostream& out_;
  int64_t events_ = 0;
};

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

void AddOperations(const Run& run, Trace& trace) {
  std::vector<char> named(static_cast<size_t>(run.fabric->nodes()), 0);
  for (topology::OperationId id = 0; id < run.workload->size() && !trace.is_full(); ++id) {
    const Operation& operation = run.workload->operation(id);
    const topology::OperationResult& result = run.result.operations[id];
    bool is_ended = result.ended < absl::InfiniteDuration();
    if (!is_ended || operation.kind == OperationKind::kJoin) continue;
    topology::Endpoint where = operation.kind == OperationKind::kRing
                                   ? run.workload->ring(operation.ring)[0]
                                   : operation.source;
    if (!named[where.host.index()]) {
      named[where.host.index()] = 1;
      trace.NameProcess(where.host.value(), run.fabric->node(where.host).name);
    }
    trace.AddSpan(NameOf(run, operation), run.workload->group(operation.group), where.host.value(),
                  where.nic, result.started, result.ended);
  }
}

// One process of all links, which are its threads.
void AddPauses(const Run& run, Trace& trace) {
  if (run.recorder.pauses().empty()) return;
  int process = run.fabric->nodes();
  trace.NameProcess(process, "links paused by PFC");
  std::vector<char> named(static_cast<size_t>(run.fabric->links()), 0);
  for (const Recorder::Pause& pause : run.recorder.pauses()) {
    if (trace.is_full()) return;
    if (!named[pause.link.index()]) {
      named[pause.link.index()] = 1;
      trace.Add(absl::StrFormat(
          R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"%s"}})", process,
          pause.link.value(), run.fabric->Name(pause.link)));
    }
    trace.AddSpan("paused", "pfc", process, pause.link.value(), pause.from, pause.to);
  }
}

void AddFaults(const Run& run, Trace& trace) {
  for (const topology::LinkFault& fault : run.faults) {
    std::string what = fault.kind == topology::LinkFault::Kind::kUp     ? "up"
                       : fault.kind == topology::LinkFault::Kind::kDown ? "down"
                                                                        : ToString(fault.bandwidth);
    trace.Add(absl::StrFormat(
        R"({"ph":"i","s":"g","name":"%s %s","cat":"fault","pid":%d,"tid":0,"ts":%.6f})",
        run.fabric->Name(fault.link), what, run.fabric->nodes(),
        absl::ToDoubleMicroseconds(fault.at)));
  }
}

}  // namespace

absl::Status WriteTimeline(const Run& run, const std::string& path) {
  std::ostringstream text;
  {
    Trace trace(text);
    AddFaults(run, trace);
    AddPauses(run, trace);
    AddOperations(run, trace);
  }
  return WriteFile(path, text.str());
}

}  // namespace weft::sim
