#include "tools/driver/page.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/first_line.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "net/secret.h"

namespace weft::driver {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTokenLeast = 16;
// Between two looks at a file in which another driver writes the token.
constexpr absl::Duration kTokenLookEvery = absl::Milliseconds(10);

constexpr char kHtml[] = R"(<!doctype html>
<html lang="en"><meta charset="utf-8"><title>weft-driver</title>
<style>
 body { font: 14px system-ui, sans-serif; margin: 2em; max-width: 70em }
 table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .2em .8em; text-align: left }
 th { border-bottom: 1px solid #888 } .bad { color: #b00 } pre { white-space: pre-wrap }
</style>
<h1>weft-driver</h1>
<p><label>token <input id="token" type="password" size="40"></label>
<button id="show">show</button> <button id="replay">replay a step</button>
<button id="stop">stop the job</button> <span id="said"></span></p>
<div id="job"></div>
<script>
const token = document.getElementById('token'), said = document.getElementById('said');
token.value = sessionStorage.getItem('token') || '';
async function call(method, path) {
  const answer = await fetch(path, {method, headers: {Authorization: 'Bearer ' + token.value}});
  if (!answer.ok) throw new Error(answer.status + ' ' + await answer.text());
  sessionStorage.setItem('token', token.value);
  return answer;
}
async function act(path, question) {
  if (!confirm(question)) return;
  try { said.textContent = await (await call('POST', path)).text(); }
  catch (error) { said.textContent = error.message; }
  show();
}
function table(heads, rows) {
  const table = document.createElement('table');
  const add = (cells, kind) => {
    const line = table.insertRow();
    for (const cell of cells) {
      const at = document.createElement(kind);
      at.append(cell instanceof Node ? cell : String(cell ?? ''));
      line.append(at);
    }
  };
  add(heads, 'th');
  for (const row of rows) add(row, 'td');
  return table;
}
function evict(host) {
  const button = document.createElement('button');
  button.textContent = 'evict';
  button.onclick = () => act('/evict/' + encodeURIComponent(host), 'Evict ' + host + '?');
  return button;
}
async function show() {
  let job;
  try { job = await (await call('GET', '/job.json')).json(); }
  catch (error) { said.textContent = error.message; return; }
  const lines = document.createElement('pre');
  lines.textContent = job.history.map(
      line => new Date(line.time * 1000).toISOString() + '  ' + line.text).reverse().join('\n');
  const recoveries = document.createElement('pre');
  recoveries.textContent = job.recoveries.slice().reverse().join('\n');
  document.getElementById('job').replaceChildren(
    job.outcome ? 'over: ' + job.outcome.reason : job.replay ? 'replays a step: ' + job.replay
      : job.started ? 'runs' : 'waits for hosts',
    '; ranks started anew: ' + job.restarts,
    table(['host', 'node', 'state', 'heard of, s ago', 'spares', 'bytes', ''],
      job.hosts.map(h => [h.host, h.node < 0 ? 'spare' : h.node, h.state,
        h.age === null ? '' : h.age.toFixed(1), h.spares, h.bytes,
        h.state.startsWith('evicted') ? '' : evict(h.host)])),
    table(['rank', 'host', 'generation', 'state', 'step', 'last end', 'errors'],
      job.ranks.map(r => [r.rank, r.host, r.generation, r.state, r.step ?? '', r.last_end,
        r.errors.join(' | ')])),
    recoveries, lines);
}
document.getElementById('show').onclick = show;
document.getElementById('replay').onclick = () => act('/replay', 'Suspend the job, and replay a step?');
document.getElementById('stop').onclick = () => act('/stop', 'Stop the job?');
if (token.value) show();
setInterval(() => { if (token.value) show(); }, 2000);
</script></html>
)";

std::string StateOf(const recovery::HostState& host) {
  if (host.evicted) return absl::StrCat("evicted: ", host.reason);
  if (host.test != 0) return "tests itself";
  return host.node < 0 ? "spare" : "runs";
}

const RankReport* FindRank(const HostReport& report, int rank) {
  for (const RankReport& line : report.ranks) {
    if (line.rank == rank) return &line;
  }
  return nullptr;
}

observe::HttpResponse Said(const absl::StatusOr<std::vector<recovery::Action>>& decided,
                           std::vector<recovery::Action>& said) {
  if (absl::IsNotFound(decided.status())) {
    return {404, "text/plain; charset=utf-8", absl::StrCat(decided.status().message(), "\n")};
  }
  if (absl::IsFailedPrecondition(decided.status())) {
    return {409, "text/plain; charset=utf-8", absl::StrCat(decided.status().message(), "\n")};
  }
  if (!decided.ok()) {
    return {500, "text/plain; charset=utf-8", absl::StrCat(decided.status().message(), "\n")};
  }
  std::string text = decided->empty() ? "nothing to do\n" : "";
  for (const recovery::Action& action : *decided) absl::StrAppend(&text, ToText(action), "\n");
  said.insert(said.end(), decided->begin(), decided->end());
  return {200, "text/plain; charset=utf-8", text};
}

// Pipes and devices have no size: whoever names one has a token there.
bool IsEmptyOrMissing(const std::string& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) return errno == ENOENT;
  return S_ISREG(info.st_mode) && info.st_size == 0;
}

// Whether the open file `descriptor` is still the one of that name.
bool IsNamed(int descriptor, const std::string& file) {
  struct stat opened {};
  struct stat named {};
  return fstat(descriptor, &opened) == 0 && stat(file.c_str(), &named) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

// Puts a new token in the place of the empty `file`, which the caller has locked. Where that fails,
// the file is gone or empty: one with a part of a token would end every later driver.
absl::Status WriteToken(const std::string& file) {
  const absl::Status written =
      WriteFile(file, absl::StrCat(net::SecretToHex(net::NewJobSecret()), "\n"));
  if (!written.ok() && unlink(file.c_str()) != 0) {
    std::error_code error;  // nothing more can be done
    std::filesystem::resize_file(file, 0, error);
  }
  return written;
}

}  // namespace

absl::StatusOr<std::string> PageToken(const std::string& file, absl::Duration patience) {
  const std::string doing = absl::StrCat("write the page's token to ", file);
  const absl::Time deadline = SystemClock().Now() + patience;
  // Empty: a driver writes the token now, or was gone, or its host, before that was on the disk.
  while (IsEmptyOrMissing(file)) {
    const FileDescriptor empty(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!empty) return ErrnoStatus(errno, doing);
    // File systems without locks do without.
    const bool is_locked = flock(empty.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    // Else another driver's token has taken the file's place in between.
    if (!is_locked && IsNamed(empty.get(), file) && IsEmptyOrMissing(file)) {
      WEFT_RETURN_IF_ERROR(Annotate(WriteToken(file), doing));
    } else if (SystemClock().Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          file, " is empty, and another process has had it locked for ",
          absl::FormatDuration(patience),
          " to write the page's token: end that process, delete the file, or name another one"));
    } else {
      absl::SleepFor(kTokenLookEvery);
    }
  }
  std::string token = FirstLine(file);
  if (token.size() >= kTokenLeast) return token;
  return absl::InvalidArgumentError(absl::StrCat("the token in ", file, " has ", token.size(),
                                                 " characters; ", kTokenLeast, " are the least"));
}

observe::HttpServerOptions PageServer(const observe::HttpAddress& address, std::string token) {
  observe::HttpServerOptions options;
  options.address = address;
  options.token = std::move(token);
  options.open_paths = {"/"};
  options.takes_posts = true;
  return options;
}

std::string JobJson(const Driver& driver, absl::Time now) {
  const recovery::JobState& job = driver.job();
  Json json = {{"incarnation", driver.record().incarnation},
               {"started", job.started},
               {"restarts", job.restarts},
               {"replay", job.replay.has_value() ? Json(job.replay->why) : Json()},
               {"outcome", Json()}};
  if (job.outcome.has_value()) {
    json["outcome"] = {{"exit_status", job.outcome->exit_status}, {"reason", job.outcome->reason}};
  }
  json["nodes"] = Json::array();
  for (const recovery::NodeState& node : job.nodes) json["nodes"].push_back(node.host);
  json["hosts"] = Json::array();
  for (const auto& [name, host] : job.hosts) {
    const auto heard = driver.heard().find(name);
    const bool is_heard = heard != driver.heard().end();
    const HostReport report = is_heard ? heard->second.report : HostReport{};
    json["hosts"].push_back({{"host", name},
                             {"node", host.node},
                             {"state", StateOf(host)},
                             {"address", host.address},
                             {"age", is_heard && heard->second.report.beat > 0
                                         ? Json(absl::ToDoubleSeconds(now - heard->second.at))
                                         : Json()},
                             {"pid", report.pid},
                             {"agent", report.agent},
                             {"spares", report.spares},
                             {"bytes", report.bytes},
                             {"findings", report.findings}});
  }
  json["ranks"] = Json::array();
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const recovery::RankState& state = job.ranks[rank];
    const std::string& host =
        job.nodes[rank / static_cast<size_t>(driver.record().policy.ranks_per_node)].host;
    const auto heard = driver.heard().find(host);
    const RankReport* line = heard == driver.heard().end()
                                 ? nullptr
                                 : FindRank(heard->second.report, static_cast<int>(rank));
    json["ranks"].push_back(
        {{"rank", rank},
         {"host", host},
         {"generation", state.generation},
         {"state", state.done   ? "done"
                   : state.runs ? "runs"
                                : "waits"},
         {"pid", line == nullptr ? Json() : Json(line->pid)},
         {"step", line == nullptr || line->step < 0 ? Json() : Json(line->step)},
         {"last_end", state.last_end},
         {"errors", line == nullptr ? Json::array() : Json(line->errors)}});
  }
  // Those of the host that has rank 0 now, and of earlier ones.
  json["recoveries"] = Json::array();
  for (const auto& [_, heard] : driver.heard()) {
    for (const std::string& line : heard.report.recoveries) json["recoveries"].push_back(line);
  }
  json["notices"] = Json::array();
  for (const recovery::Notice& notice : job.notices) {
    json["notices"].push_back({{"host", notice.host}, {"why", notice.why}});
  }
  json["history"] = Json::array();
  for (const HistoryLine& line : driver.record().history) {
    json["history"].push_back(
        {{"time", static_cast<double>(absl::ToUnixMicros(line.time)) * 1e-6}, {"text", line.text}});
  }
  return JsonText(json);
}

observe::HttpResponse Answer(Driver& driver, const observe::HttpRequest& request, absl::Time now,
                             std::vector<recovery::Action>& said) {
  absl::string_view path = request.path;
  if (request.method == "GET" && path == "/") return {200, "text/html; charset=utf-8", kHtml};
  if (request.method == "GET" && path == "/job.json") {
    return {200, "application/json", JobJson(driver, now)};
  }
  if (request.method == "POST" && path == "/stop") {
    return Said(driver.Stop(1, "stopped by hand", now), said);
  }
  if (request.method == "POST" && path == "/replay") {
    return Said(driver.Replay("asked for by hand", now), said);
  }
  if (request.method == "POST" && absl::ConsumePrefix(&path, "/evict/")) {
    return Said(driver.Evict(std::string(path), "by hand", now), said);
  }
  return {404, "text/plain; charset=utf-8",
          "there are /, /job.json, and POST /evict/HOST, /replay, /stop\n"};
}

}  // namespace weft::driver
