#include "tests/net/verbs/scripted_nic.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "tests/net/verbs/scripted_core.h"

namespace weft::net {

using scripted::DeviceState, scripted::PairState, scripted::Ring;
using Lock = std::lock_guard<std::mutex>;

namespace {

std::vector<NicGid> GidsOf(const ScriptedDeviceOptions& options) {
  Gid link_local{};
  link_local[0] = 0xFE, link_local[1] = 0x80;
  Gid global{};
  if (options.ipv6) {
    global[0] = 0xFD;
  } else {
    global[10] = global[11] = 0xFF;
  }
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint8_t>(options.address >> (24 - 8 * i));
    link_local[12 + i] = global[12 + i] = byte;
  }
  link_local[8] = 2;
  if (!options.ethernet) return {{0, link_local, GidKind::kInfiniband}};
  return {{0, link_local, GidKind::kRoceV1},
          {1, link_local, GidKind::kRoceV2},
          {2, global, GidKind::kRoceV1},
          {3, global, GidKind::kRoceV2}};
}

}  // namespace

ScriptedFabric::ScriptedFabric() : core_(std::make_shared<Core>()) {}

ScriptedFabric::~ScriptedFabric() = default;

void ScriptedFabric::set_on_call(OnCall script) {
  Lock lock(core_->mutex);
  core_->on_call = std::move(script);
}

void ScriptedFabric::set_on_transfer(OnTransfer script) {
  Lock lock(core_->mutex);
  core_->on_transfer = std::move(script);
}

std::unique_ptr<Nic> ScriptedFabric::MakeNic(const std::vector<ScriptedDeviceOptions>& devices) {
  Lock lock(core_->mutex);
  std::vector<std::string> names;
  for (const ScriptedDeviceOptions& options : devices) {
    auto device = std::make_unique<DeviceState>();
    device->options = options;
    device->gids = GidsOf(options);
    names.push_back(options.name);
    WEFT_CHECK(core_->devices.emplace(options.name, std::move(device)).second, options.name);
  }
  return scripted::MakeNic(core_, std::move(names));
}

std::unique_ptr<Nic> ScriptedFabric::ReopenNic(const std::vector<std::string>& devices) {
  return scripted::MakeNic(core_, devices);
}

void ScriptedFabric::PushEvent(const std::string& device, const NicEvent& event) {
  Lock lock(core_->mutex);
  DeviceState& state = *core_->devices.at(device);
  state.events.push_back(event);
  Ring(state.event_fd);
}

void ScriptedFabric::SetPortActive(const std::string& device, bool active) {
  Lock lock(core_->mutex);
  core_->devices.at(device)->active = active;
  core_->PumpAll();
}

void ScriptedFabric::HoldDestroy(bool hold) {
  Lock lock(core_->mutex);
  core_->holds_destroy = hold;
  core_->may_go_on.notify_all();
}

void ScriptedFabric::HoldConnect(const std::string& device) {
  Lock lock(core_->mutex);
  core_->holds_connect = device;
  core_->held_connects = 0;
  core_->may_go_on.notify_all();
}

int ScriptedFabric::receives_lost() const {
  Lock lock(core_->mutex);
  return core_->receives_lost;
}

int ScriptedFabric::held_connects() const {
  Lock lock(core_->mutex);
  return core_->held_connects;
}

int ScriptedFabric::connected_while_held() const {
  Lock lock(core_->mutex);
  return core_->connected_while_held;
}

int ScriptedFabric::destroyed_while_held() const {
  Lock lock(core_->mutex);
  return core_->destroyed_while_held;
}

void ScriptedFabric::SetRate(const std::string& device, double bytes_per_second) {
  Lock lock(core_->mutex);
  core_->devices.at(device)->throttle.rate = bytes_per_second;
}

void ScriptedFabric::SetSpines(const std::vector<double>& bytes_per_second, SpineOf spine_of) {
  Lock lock(core_->mutex);
  core_->spines.clear();
  for (double rate : bytes_per_second) core_->spines.push_back({{rate, 0}, 0});
  core_->spine_of = std::move(spine_of);
}

std::vector<uint64_t> ScriptedFabric::spine_bytes() const {
  Lock lock(core_->mutex);
  std::vector<uint64_t> out;
  for (const scripted::Spine& spine : core_->spines) out.push_back(spine.bytes);
  return out;
}

void ScriptedFabric::Advance(absl::Duration step) {
  Lock lock(core_->mutex);
  for (auto& [name, device] : core_->devices) {
    device->throttle.Advance(step);
  }
  for (scripted::Spine& spine : core_->spines) spine.throttle.Advance(step);
  core_->PumpAll();
}

std::vector<uint32_t> ScriptedFabric::QueuePairs(const std::string& device) const {
  Lock lock(core_->mutex);
  std::vector<uint32_t> out;
  for (const auto& [number, pair] : core_->pairs) {
    if (pair->device->options.name == device && pair->state != PairState::kReset) {
      out.push_back(number);
    }
  }
  return out;
}

uint64_t ScriptedFabric::bytes_from(const std::string& device) const {
  Lock lock(core_->mutex);
  return core_->devices.at(device)->bytes;
}

int ScriptedFabric::dropped_from(const std::string& device) const {
  Lock lock(core_->mutex);
  return core_->devices.at(device)->messages_dropped;
}

int ScriptedFabric::overruns() const {
  Lock lock(core_->mutex);
  return core_->overruns;
}

int ScriptedFabric::not_ready() const {
  Lock lock(core_->mutex);
  return core_->not_ready;
}

size_t ScriptedFabric::registrations() const {
  Lock lock(core_->mutex);
  return core_->memory.size();
}

size_t ScriptedFabric::unseen_writes() const {
  Lock lock(core_->mutex);
  return core_->memory.unseen();
}

}  // namespace weft::net
