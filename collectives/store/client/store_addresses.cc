#include "collectives/store/client/store_addresses.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"

namespace weft::collectives {
namespace {

// Thousands of hosts may wait for a server that is not there yet.
constexpr absl::Duration kAskEvery = absl::Seconds(5);

}  // namespace

absl::Status CheckStoreAddress(absl::string_view address) {
  if (absl::ConsumePrefix(&address, kUnixPrefix)) return SocketAddress::Unix(address).status();
  return SplitHostPort(address).status();
}

struct StoreAddresses::LookUp {
  std::mutex mutex;
  std::condition_variable answered;
  std::optional<absl::StatusOr<std::vector<SocketAddress>>> answer;
};

StoreAddresses::StoreAddresses(std::string name) : name_(std::move(name)) {
  auto known = ResolveNumeric(name_);
  // Nobody is asked what is malformed either.
  numeric_ = known.ok() || absl::IsInvalidArgument(known.status());
  error_ = known.status();
  if (known.ok()) known_ = *std::move(known);
}

StoreAddresses::StoreAddresses(std::string name, Finder finder)
    : name_(std::move(name)), finder_(std::move(finder)) {}

void StoreAddresses::Refresh() {
  if (numeric_ || look_up_ != nullptr || SystemClock().Now() < asked_ + kAskEvery) return;
  Ask();
}

void StoreAddresses::Ask() {
  asked_ = SystemClock().Now();
  look_up_ = std::make_shared<LookUp>();
  // Detached: it may outlive us, and touches nothing of ours.
  std::thread([state = look_up_, name = name_, finder = finder_] {
    auto answer = finder ? finder() : ResolveHostPort(name);
    std::lock_guard lock(state->mutex);
    state->answer = std::move(answer);
    state->answered.notify_all();
  }).detach();
}

void StoreAddresses::TakeAnswer() {
  if (look_up_ == nullptr) return;
  std::optional<absl::StatusOr<std::vector<SocketAddress>>> answer;
  {
    std::lock_guard lock(look_up_->mutex);
    if (!look_up_->answer.has_value()) return;
    answer = std::move(look_up_->answer);
  }
  look_up_.reset();
  error_ = answer->status();
  if (answer->ok()) known_ = **std::move(answer);
}

std::optional<absl::StatusOr<std::vector<SocketAddress>>> StoreAddresses::Poll() {
  bool asked = look_up_ != nullptr;
  TakeAnswer();
  if (!known_.empty()) return known_;
  if (numeric_ || (asked && look_up_ == nullptr)) return error_;
  if (look_up_ == nullptr) Ask();
  return std::nullopt;
}

absl::StatusOr<std::vector<SocketAddress>> StoreAddresses::Await(absl::Time deadline) {
  auto answer = Poll();
  if (answer.has_value()) return *std::move(answer);
  absl::Duration left = deadline - SystemClock().Now();
  std::unique_lock lock(look_up_->mutex);
  bool answered =
      look_up_->answered.wait_for(lock, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))),
                                  [this] { return look_up_->answer.has_value(); });
  lock.unlock();
  if (answered) return *Poll();
  return absl::DeadlineExceededError(
      absl::StrCat("the name service does not say where ", name_, " is"));
}

}  // namespace weft::collectives
