#include "topology/sim/workloads/htsim_traffic.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr int64_t kMostLines = 20'000'000;
constexpr int64_t kMostBytes = 1'000'000'000'000'000;
constexpr double kMostPicoseconds = 1e16;  // 10,000 s

using Tokens = std::vector<absl::string_view>;

struct Connection {
  int64_t line = 0;
  size_t source = 0, target = 0;
  int64_t bytes = 0;
  double start = -1;     // picoseconds; -1: not stated
  uint32_t trigger = 0;  // that starts it; 0: none
  std::vector<uint32_t> activates;
};

struct Trigger {
  enum class Kind : uint8_t { kUnknown, kOneShot, kMultiShot, kBarrier };
  int64_t line = 0;
  Kind kind = Kind::kUnknown;
  int64_t count = 0;
  std::vector<size_t> activators, targets;  // connections, in order of the file
};

class Parser {
 public:
  Parser(absl::string_view name, const Fabric& fabric)
      : name_(name), endpoints_(fabric.Endpoints()) {}

  absl::StatusOr<Workload> Parse(absl::string_view text);

 private:
  absl::Status At(int64_t line, absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ":", line, ": ", message));
  }
  absl::Status ParseLine(const Tokens& tokens);
  absl::Status ParseHeader(const Tokens& tokens);
  absl::Status ParseConnection(const Tokens& tokens);
  absl::Status ParseTrigger(const Tokens& tokens);
  // The number behind key number `i`, which it moves on.
  absl::StatusOr<int64_t> Number(const Tokens& tokens, size_t& i, int64_t least,
                                 int64_t most) const;
  absl::StatusOr<size_t> Node(absl::string_view text) const;
  absl::Status Count(const char* what, int64_t stated, size_t found) const;
  absl::Status Connect();
  absl::Status ConnectTrigger(uint32_t id, const Trigger& trigger);
  absl::StatusOr<Workload> Build() const;

  const std::string name_;
  const std::vector<Endpoint> endpoints_;
  int64_t line_ = 0;
  int64_t nodes_ = -1, stated_connections_ = -1, stated_triggers_ = -1;
  std::vector<Connection> connections_;
  absl::flat_hash_map<uint32_t, Trigger> triggers_;
  std::vector<uint32_t> trigger_order_;
  std::vector<std::vector<size_t>> after_;  // by connection
};

absl::StatusOr<int64_t> Parser::Number(const Tokens& tokens, size_t& i, int64_t least,
                                       int64_t most) const {
  const absl::string_view key = tokens[i];
  if (++i >= tokens.size()) return At(line_, absl::StrCat("no number behind \"", key, "\""));
  int64_t number = 0;
  if (!absl::SimpleAtoi(tokens[i], &number) || number < least || number > most) {
    return At(line_, absl::StrCat(key, " ", tokens[i].substr(0, 40),
                                  ": wanted is a whole number from ", least, " to ", most));
  }
  return number;
}

absl::StatusOr<size_t> Parser::Node(absl::string_view text) const {
  int64_t node = 0;
  if (!absl::SimpleAtoi(text, &node) || node < 0 || (nodes_ >= 0 && node >= nodes_)) {
    return At(line_,
              absl::StrCat("node \"", text.substr(0, 40), "\": wanted is a number from 0 to ",
                           nodes_ - 1, " (Nodes ", nodes_, ")"));
  }
  if (static_cast<size_t>(node) >= endpoints_.size()) {
    return At(line_, absl::StrCat("node ", node, " in a fabric of ", endpoints_.size(), " NICs"));
  }
  return static_cast<size_t>(node);
}

absl::Status Parser::ParseHeader(const Tokens& tokens) {
  int64_t* number = tokens[0] == "Nodes"         ? &nodes_
                    : tokens[0] == "Connections" ? &stated_connections_
                    : tokens[0] == "Triggers"    ? &stated_triggers_
                                                 : nullptr;
  if (number == nullptr) {
    return At(line_,
              absl::StrCat("\"", tokens[0].substr(0, 40),
                           "\" is none of: Nodes, Connections, Triggers, SRC->DST, trigger"));
  }
  size_t i = 0;
  WEFT_ASSIGN_OR_RETURN(*number, Number(tokens, i, 0, kMostLines));
  return absl::OkStatus();
}

absl::Status Parser::ParseConnection(const Tokens& tokens) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(tokens[0], absl::MaxSplits("->", 1));
  Connection connection{.line = line_, .activates = {}};
  WEFT_ASSIGN_OR_RETURN(connection.source, Node(ends.first));
  WEFT_ASSIGN_OR_RETURN(connection.target, Node(ends.second));
  constexpr int64_t kMostId = std::numeric_limits<uint32_t>::max();
  for (size_t i = 1; i < tokens.size(); ++i) {
    const absl::string_view key = tokens[i];
    if (key == "start") {
      if (++i >= tokens.size() || !absl::SimpleAtod(tokens[i], &connection.start) ||
          !(connection.start >= 0 && connection.start <= kMostPicoseconds)) {
        return At(line_,
                  absl::StrCat("start: wanted are picoseconds from 0 to ", kMostPicoseconds));
      }
    } else if (key == "size") {
      WEFT_ASSIGN_OR_RETURN(connection.bytes, Number(tokens, i, 0, kMostBytes));
    } else if (key == "trigger") {
      WEFT_ASSIGN_OR_RETURN(const int64_t id, Number(tokens, i, 1, kMostId));
      connection.trigger = static_cast<uint32_t>(id);
    } else if (key == "send_done_trigger" || key == "recv_done_trigger") {
      WEFT_ASSIGN_OR_RETURN(const int64_t id, Number(tokens, i, 1, kMostId));
      connection.activates.push_back(static_cast<uint32_t>(id));
    } else if (key == "id" || key == "prio" || key == "msg") {
      WEFT_RETURN_IF_ERROR(Number(tokens, i, key == "prio" ? 0 : 1, kMostId).status());
    } else if (key != "addon") {
      return At(line_, absl::StrCat("\"", key.substr(0, 40), "\" is none of: id, start, size, ",
                                    "trigger, send_done_trigger, recv_done_trigger, prio, msg"));
    }
  }
  if ((connection.start < 0) == (connection.trigger == 0)) {
    return At(line_, connection.trigger == 0 ? "neither start nor trigger says when it begins"
                                             : "both start and trigger say when it begins");
  }
  connections_.push_back(std::move(connection));
  return absl::OkStatus();
}

absl::Status Parser::ParseTrigger(const Tokens& tokens) {
  int64_t id = 0;
  Trigger trigger{.line = line_, .activators = {}, .targets = {}};
  auto is = [&](Trigger::Kind kind) {
    const bool first = trigger.kind == Trigger::Kind::kUnknown;
    trigger.kind = kind;
    return first;
  };
  for (size_t i = 1; i < tokens.size(); ++i) {
    bool fine = true;
    if (tokens[i] == "id") {
      WEFT_ASSIGN_OR_RETURN(id, Number(tokens, i, 1, std::numeric_limits<uint32_t>::max()));
    } else if (tokens[i] == "count") {
      WEFT_ASSIGN_OR_RETURN(trigger.count, Number(tokens, i, 1, kMostLines));
    } else if (tokens[i] == "oneshot") {
      fine = is(Trigger::Kind::kOneShot);
    } else if (tokens[i] == "multishot") {
      fine = is(Trigger::Kind::kMultiShot);
    } else if (tokens[i] == "barrier") {
      fine = is(Trigger::Kind::kBarrier);
    } else {
      return At(line_, absl::StrCat("\"", tokens[i].substr(0, 40),
                                    "\" is none of: id, count, oneshot, multishot, barrier"));
    }
    if (!fine) return At(line_, "a trigger of two kinds");
  }
  if (id == 0) return At(line_, "a trigger without id");
  if (trigger.kind == Trigger::Kind::kUnknown) {
    return At(line_, "a trigger that is neither oneshot, multishot nor barrier");
  }
  if (!triggers_.try_emplace(static_cast<uint32_t>(id), std::move(trigger)).second) {
    return At(line_, absl::StrCat("a second trigger ", id));
  }
  trigger_order_.push_back(static_cast<uint32_t>(id));
  return absl::OkStatus();
}

absl::Status Parser::ParseLine(const Tokens& tokens) {
  if (absl::StrContains(tokens[0], "->")) return ParseConnection(tokens);
  if (tokens[0] == "trigger") return ParseTrigger(tokens);
  if (tokens[0] == "failure" || tokens[0] == "Failures") {
    return At(line_, "failures name switches of htsim's own fabrics: give faults to the simulator");
  }
  return ParseHeader(tokens);
}

absl::Status Parser::Count(const char* what, int64_t stated, size_t found) const {
  if (stated < 0 || static_cast<size_t>(stated) == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": ", what, " ", stated, ", and ", found, " follow"));
}

// From triggers to what each connection waits for.
absl::Status Parser::Connect() {
  after_.resize(connections_.size());
  for (size_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    auto known = [&](uint32_t id) { return triggers_.contains(id); };
    if (connection.trigger != 0) {
      if (!known(connection.trigger)) {
        return At(connection.line,
                  absl::StrCat("no line says what trigger ", connection.trigger, " is"));
      }
      triggers_[connection.trigger].targets.push_back(i);
    }
    for (uint32_t id : connection.activates) {
      if (!known(id))
        return At(connection.line, absl::StrCat("no line says what trigger ", id, " is"));
      triggers_[id].activators.push_back(i);
    }
  }
  for (uint32_t id : trigger_order_) WEFT_RETURN_IF_ERROR(ConnectTrigger(id, triggers_[id]));
  return absl::OkStatus();
}

absl::Status Parser::ConnectTrigger(uint32_t id, const Trigger& trigger) {
  const std::vector<size_t>& activators = trigger.activators;
  auto never = [&](absl::string_view why) {
    return At(trigger.line, absl::StrCat("trigger ", id, " ", why));
  };
  switch (trigger.kind) {
    case Trigger::Kind::kOneShot:
      if (trigger.targets.empty()) return absl::OkStatus();
      if (activators.size() != 1) {
        return never(absl::StrCat("is a oneshot with ", activators.size(),
                                  " connections that activate it; wanted is one"));
      }
      break;
    case Trigger::Kind::kBarrier:
      if (trigger.targets.empty()) return absl::OkStatus();
      if (trigger.count != static_cast<int64_t>(activators.size())) {
        return never(absl::StrCat("is a barrier of count ", trigger.count, " with ",
                                  activators.size(), " connections that activate it"));
      }
      break;
    case Trigger::Kind::kMultiShot:
      if (trigger.targets.size() > activators.size()) {
        return never(absl::StrCat("is to start ", trigger.targets.size(), " connections, and only ",
                                  activators.size(), " activate it"));
      }
      for (size_t i = 0; i < trigger.targets.size(); ++i) {
        after_[trigger.targets[i]].push_back(activators[i]);
      }
      return absl::OkStatus();
    case Trigger::Kind::kUnknown:
      break;
  }
  for (size_t target : trigger.targets) {
    after_[target].insert(after_[target].end(), activators.begin(), activators.end());
  }
  return absl::OkStatus();
}

// In the order of the file, but each connection behind those it waits for.
absl::StatusOr<Workload> Parser::Build() const {
  constexpr OperationId kNone = std::numeric_limits<OperationId>::max();
  Workload workload;
  const uint32_t group = workload.AddGroup(name_);
  std::vector<OperationId> ids(connections_.size(), kNone);
  std::vector<bool> entered(connections_.size());
  std::vector<size_t> stack;
  std::vector<OperationId> after;
  for (size_t root = 0; root < connections_.size(); ++root) {
    stack.assign(1, root);
    while (!stack.empty()) {
      const size_t i = stack.back();
      if (ids[i] != kNone) {
        stack.pop_back();
        continue;
      }
      const size_t before = stack.size();
      for (size_t needed : after_[i]) {
        if (ids[needed] == kNone) stack.push_back(needed);
      }
      if (stack.size() > before) {
        if (entered[i]) {
          return At(connections_[i].line, "it waits, through triggers, for itself");
        }
        entered[i] = true;
        continue;
      }
      const Connection& connection = connections_[i];
      after.clear();
      for (size_t needed : after_[i]) after.push_back(ids[needed]);
      const int64_t picoseconds = std::llround(std::max(connection.start, 0.0));
      ids[i] = workload.Add({.source = endpoints_[connection.source],
                             .target = endpoints_[connection.target],
                             .bytes = Bytes(connection.bytes),
                             .start = absl::Nanoseconds(static_cast<double>(picoseconds) / 1000),
                             .group = group},
                            after);
      stack.pop_back();
    }
  }
  return workload;
}

absl::StatusOr<Workload> Parser::Parse(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++line_ > kMostLines) return At(line_, absl::StrCat("more than ", kMostLines, " lines"));
    const Tokens tokens = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (tokens.empty() || tokens[0][0] == '#') continue;
    WEFT_RETURN_IF_ERROR(ParseLine(tokens));
  }
  if (connections_.empty())
    return absl::InvalidArgumentError(absl::StrCat(name_, ": no connection"));
  WEFT_RETURN_IF_ERROR(Count("Connections", stated_connections_, connections_.size()));
  WEFT_RETURN_IF_ERROR(Count("Triggers", stated_triggers_, triggers_.size()));
  WEFT_RETURN_IF_ERROR(Connect());
  return Build();
}

}  // namespace

absl::StatusOr<Workload> ParseHtsimTraffic(absl::string_view text, absl::string_view name,
                                           const Fabric& fabric) {
  return Parser(name, fabric).Parse(text);
}

absl::StatusOr<Workload> ReadHtsimTraffic(const std::string& path, const Fabric& fabric) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseHtsimTraffic(text, path, fabric);
}

}  // namespace weft::topology
