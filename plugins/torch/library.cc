// libweft_torch.so: what the Python package weft.torch calls, as operators of torch.ops.weft. It
// links libtorch_cpu and libc10, and no symbol of Python: one file for all versions of that.
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/version.h"
#include "collectives/c10d/dispatch.h"
#include "collectives/c10d/group.h"
#include "collectives/c10d/work.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/endpoint.h"
#include "plugins/torch/interrupts.h"

namespace weft::torch_plugin {
namespace {

using collectives::GroupOptions;
using collectives::ProcessGroups;
using collectives::WeftBackend;

// Never destroyed: the interpreter may hold groups until after the destructors of statics.
ProcessGroups& Groups() {
  static auto* groups = new ProcessGroups;
  return *groups;
}

void OrThrow(const absl::Status& status) {
  if (!status.ok()) std::rethrow_exception(collectives::BackendError(status));
}

// Null where a process group has another backend for cpu, or none.
c10::intrusive_ptr<WeftBackend> BackendOf(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  for (const c10::Device& device : group->getDeviceTypes()) {
    if (!device.is_cpu()) continue;
    auto* ours = dynamic_cast<WeftBackend*>(group->getBackend(c10::DeviceType::CPU).get());
    if (ours != nullptr) return c10::intrusive_ptr<WeftBackend>::reclaim_copy(ours);
  }
  return nullptr;
}

// `carrier` is a c10d.ProcessGroup over the group's store, with its rank and size; the backend that
// is made is registered with it for cpu. `default_group` is PyTorch's at present, none while that
// is made. `settings`: "name=value" each, over those of the environment.
void CreateGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& carrier,
                 const std::optional<c10::intrusive_ptr<c10d::ProcessGroup>>& default_group,
                 const std::string& name, const std::vector<int64_t>& global_ranks,
                 int64_t timeout_ms, const std::vector<std::string>& settings) {
  GroupOptions options;
  options.store = carrier->getStore();
  options.rank = carrier->getRank();
  options.size = carrier->getSize();
  options.name = name;
  options.global_ranks = global_ranks;
  if (default_group.has_value()) options.default_group = BackendOf(*default_group);
  options.timeout = std::chrono::milliseconds(timeout_ms);
  OrThrow(options.settings.SetFromEnvironment(/*strict=*/false));
  options.own_settings = settings;
  auto group = Groups().Make(std::move(options));
  OrThrow(group.status());
  carrier->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, *group);
}

// Seconds a call of `calls` all-reduces in place of `bytes`, by the group's communicator alone:
// what the same calls through torch.distributed are measured against. Every rank of the group calls
// it.
double TimeAllReduce(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int64_t bytes,
                     int64_t calls) {
  const c10::intrusive_ptr<WeftBackend> backend = BackendOf(group);
  TORCH_CHECK(backend != nullptr, "weft time_all_reduce: the group is of another backend");
  TORCH_CHECK(bytes > 0 && calls > 0, "weft time_all_reduce: ", bytes, " bytes, ", calls, " calls");
  const auto communicator = backend->communicator();
  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float) + 1);
  const int64_t start_ns = SystemClock::Nanoseconds();
  for (int64_t i = 0; i < calls; ++i) {
    OrThrow(communicator
                ->AllReduce(data.data(), data.data(), static_cast<size_t>(bytes) / sizeof(float),
                            collectives::DataType::kFloat32, collectives::ReduceOp::kSum)
                ->Wait());
  }
  const int64_t end_ns = SystemClock::Nanoseconds();
  return absl::ToDoubleSeconds(absl::Nanoseconds(end_ns - start_ns)) / static_cast<double>(calls);
}

// Returns the priority that the group's calls had before.
std::string SetPriority(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                        const std::string& name) {
  using collectives::Priority;
  const c10::intrusive_ptr<WeftBackend> backend = BackendOf(group);
  TORCH_CHECK(backend != nullptr, "weft set_priority: the group is of another backend");
  for (const Priority priority : {Priority::kLow, Priority::kNormal, Priority::kHigh}) {
    if (name == ToString(priority)) return ToString(backend->SetPriority(priority));
  }
  TORCH_CHECK(false, "weft set_priority: \"", name,
              "\" is no priority; right are low, normal and high");
}

// At the end of the interpreter.
void ShutDownAll() {
  collectives::BeginProcessEnd();
  Groups().ShutDownAll();
}

// By the ends of a link, "0 -> 1": what Endpoint::Describe() says of it, "shm ..., 4.2 GB sent".
std::map<std::string, std::string> TextsOfLinks(const collectives::Endpoint& endpoint) {
  std::map<std::string, std::string> texts;
  const std::string description = endpoint.Describe();
  for (absl::string_view line : absl::StrSplit(description, '\n')) {
    if (!absl::ConsumePrefix(&line, "rank ")) continue;
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (absl::StrContains(parts.first, " -> ")) texts.insert(parts);
  }
  return texts;
}

nlohmann::json LinksOf(const collectives::Endpoint& endpoint) {
  const std::map<std::string, std::string> texts = TextsOfLinks(endpoint);
  nlohmann::json links = nlohmann::json::array();
  for (const auto& [peer, sends, counters] : endpoint.Counters()) {
    const int from = (sends ? endpoint.rank() : peer).value();
    const int to = (sends ? peer : endpoint.rank()).value();
    const auto text = texts.find(absl::StrCat(from, " -> ", to));
    const std::string said = text == texts.end() ? "" : text->second;
    nlohmann::json link = {{"peer", peer.value()},
                           {"sends", sends},
                           {"transport", said.substr(0, said.find_first_of(" ,("))},
                           {"messages", counters.messages_done},
                           {"bytes", counters.bytes_done},
                           {"outstanding", counters.outstanding()},
                           {"waiting_for_peer", counters.waiting_for_peer()},
                           {"repeats", counters.repeats},
                           {"rtt_us", nullptr},
                           {"text", said}};
    if (counters.rtt_ns > 0) link["rtt_us"] = static_cast<double>(counters.rtt_ns) / 1e3;
    links.push_back(std::move(link));
  }
  return links;
}

std::string StatisticsText() {
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& group : Groups().Alive()) {
    nlohmann::json calls = nlohmann::json::object();
    for (const auto& [title, row] : group->statistics().rows()) {
      calls[title.substr(title.find(':') + 1)] = {
          {"calls", row.calls},
          {"failures", row.failures},
          {"bytes", row.bytes},
          {"seconds", static_cast<double>(row.busy_ns) / 1e9}};
    }
    std::vector<int> ranks;
    for (Rank rank : group->ranks()) ranks.push_back(rank.value());
    auto endpoint = group->endpoint();
    groups.push_back({{"group", group->name()},
                      {"rank", group->getRank()},
                      {"ranks", ranks},
                      {"links", endpoint == nullptr ? nlohmann::json::array() : LinksOf(*endpoint)},
                      {"calls", std::move(calls)}});
  }
  return groups.dump();
}

// [name, value, origin, what it does] each.
std::vector<std::vector<std::string>> SettingsInForce() {
  Settings settings{LibrarySettings()};
  OrThrow(settings.SetFromEnvironment(/*strict=*/false));
  std::vector<std::vector<std::string>> rows;
  for (const SettingRow& row : settings.table()) {
    rows.push_back({std::string(row.name), settings.ValueText(row.name), settings.Origin(row.name),
                    std::string(row.sentence)});
  }
  return rows;
}

TORCH_LIBRARY(weft, library) {
  library.def("create_group", &CreateGroup);
  library.def("time_all_reduce", &TimeAllReduce);
  library.def("set_priority", &SetPriority);
  library.def("shut_down_all", &ShutDownAll);
  library.def("statistics", &StatisticsText);
  library.def("settings", &SettingsInForce);
  collectives::ShortenDispatch();
  collectives::SetInterruptCheck(&HandleSignals);
  collectives::SetInterpreterLock(&ReleaseLock, &RetakeLock);
}

}  // namespace
}  // namespace weft::torch_plugin
