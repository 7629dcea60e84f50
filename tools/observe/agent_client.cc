#include "tools/observe/agent_client.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "tools/observe/agent.h"

namespace weft::observe {

namespace {

constexpr size_t kReadingsMax = 1024;  // of a ring, whatever an agent says
constexpr size_t kReadingBytesMax = 128;
constexpr int64_t kTimeMost = int64_t{1} << 61;  // ns, 73 years: two of them can be added

bool IsTime(int64_t time_ns) { return time_ns >= 0 && time_ns <= kTimeMost; }

// The member of that name, where there is one of this type: an agent may say anything.
template <typename Value>
Value MemberOr(const nlohmann::json& from, const char* name, Value otherwise) {
  const auto found = from.find(name);  // what is no object has no members
  if (found == from.end()) return otherwise;
  bool fits = false;
  if constexpr (std::is_same_v<Value, std::string>) {
    fits = found->is_string();
  } else if constexpr (std::is_same_v<Value, bool>) {
    fits = found->is_boolean();
  } else if constexpr (std::is_integral_v<Value>) {
    fits = found->is_number_integer();
  } else {
    fits = found->is_number();
  }
  return fits ? found->template get<Value>() : otherwise;
}

// Rows [SOURCE, NAME, FIRST, LAST, CHANGED_NS]; what is none is left out.
Readings ReadingsOf(const nlohmann::json& ring, int64_t shift_ns) {
  Readings readings;
  const auto rows = ring.find("readings");
  if (rows == ring.end() || !rows->is_array()) return readings;
  for (const nlohmann::json& row : *rows) {
    if (readings.size() == kReadingsMax) break;
    if (!row.is_array() || row.size() != 5 || !row[0].is_string() || !row[1].is_string() ||
        !row[2].is_number() || !row[3].is_number() || !row[4].is_number_integer() ||
        !IsTime(row[4].get<int64_t>())) {
      continue;
    }
    const auto source = row[0].get<std::string>(), name = row[1].get<std::string>();
    if (source.size() + name.size() > kReadingBytesMax) continue;
    readings[{source, name}] = {.first = row[2].get<double>(),
                                .last = row[3].get<double>(),
                                .changed_ns = row[4].get<int64_t>() + shift_ns,
                                .known = true};
  }
  return readings;
}

}  // namespace

AgentClient::AgentClient(HttpAddress agent, std::string token, const std::string& folder,
                         size_t number)
    : agent_(std::move(agent)),
      token_(std::move(token)),
      prefix_(absl::StrCat(folder, "/", number, "-")) {}

absl::StatusOr<std::string> AgentClient::Get(const std::string& path) {
  absl::StatusOr<std::string> body = HttpFetch(agent_, {.path = path, .token = token_});
  if (body.ok()) received_ += body->size();
  return body;
}

RingCopy& AgentClient::CopyOf(const std::string& name) {
  return copies_.try_emplace(name, absl::StrCat(prefix_, name)).first->second;
}

absl::Status AgentClient::Fetch() {
  for (auto& [path, told] : told_) told.state = {};
  WEFT_ASSIGN_OR_RETURN(const std::string text, Get("/rings"));
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, false);
  if (!answer.is_object() || !answer.contains("rings") || !answer["rings"].is_array()) {
    return absl::DataLossError(
        absl::StrCat(agent_.host, ":", agent_.port, " answers /rings with no list of rings"));
  }
  const auto told_ns = MemberOr(answer, "now_ns", int64_t{0});
  const int64_t shift_ns = SystemClock::Nanoseconds() - (IsTime(told_ns) ? told_ns : 0);
  std::vector<std::string> names;
  for (const nlohmann::json& ring : answer["rings"]) {
    const auto name = MemberOr(ring, "name", std::string());
    if (IsRingName(name)) names.push_back(name);
  }
  for (size_t i = 0; i < names.size(); i += kRingsOfARequest) {
    const size_t end = std::min(names.size(), i + kRingsOfARequest);
    WEFT_RETURN_IF_ERROR(FetchChanges({names.begin() + static_cast<std::ptrdiff_t>(i),
                                       names.begin() + static_cast<std::ptrdiff_t>(end)}));
  }
  for (const nlohmann::json& ring : answer["rings"]) {
    const auto name = MemberOr(ring, "name", std::string());
    const auto copy = copies_.find(name);
    if (copy == copies_.end() || copy->second.path().empty()) continue;
    const auto [at, is_new] = told_.try_emplace(copy->second.path());
    JobWatch::Told& told = at->second;
    if (is_new) told.shift_ns = shift_ns;  // by which its records are understood, all its life
    told.state.known = true;
    told.state.exists = MemberOr(ring, "exists", false);
    told.state.state = MemberOr(ring, "state", std::string("?")).substr(0, 1)[0];
    told.state.cpu_seconds = MemberOr(ring, "cpu_seconds", 0.0);
    told.state.run_queue_seconds = MemberOr(ring, "run_queue_seconds", 0.0);
    told.state.resident_bytes = MemberOr(ring, "resident_bytes", int64_t{0});
    told.state.minor_faults = MemberOr(ring, "minor_faults", int64_t{0});
    told.state.major_faults = MemberOr(ring, "major_faults", int64_t{0});
    told.readings = ReadingsOf(ring, told.shift_ns);
  }
  return absl::OkStatus();
}

absl::Status AgentClient::FetchChanges(const std::vector<std::string>& names) {
  std::string path = "/changes";
  for (const std::string& name : names) {
    absl::StrAppend(&path, "/", name, "@", CursorText(CopyOf(name).cursor()));
  }
  WEFT_ASSIGN_OR_RETURN(const std::string body, Get(path));
  absl::string_view rest = body;
  for (const std::string& name : names) {
    uint64_t size = 0;
    if (rest.size() < sizeof(size)) break;
    std::memcpy(&size, rest.data(), sizeof(size));
    rest.remove_prefix(sizeof(size));
    if (size > rest.size()) break;
    if (size > 0) WEFT_RETURN_IF_ERROR(CopyOf(name).Apply(rest.substr(0, size)));  // 0: it has gone
    rest.remove_prefix(size);
    if (&name == &names.back() && rest.empty()) return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(agent_.host, ":", agent_.port, " answers /changes for ",
                                          names.size(), " rings with ", body.size(),
                                          " bytes that do not fit"));
}

}  // namespace weft::observe
