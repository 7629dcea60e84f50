#include "tools/nccl_harness/rank.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::harness {
namespace {

constexpr unsigned char kUntouched = 0x5A;
constexpr uint64_t kCommId = 0x1234567800000000;

// Part of a device handle that a plugin of host type leaves alone.
nccl::abi::DeviceHandle* const kNoDeviceHandle = nullptr;

}  // namespace

absl::Status Rank::Meet() { return channel_.Exchange("meet", options_.timeout).status(); }

absl::Status Rank::Need(nccl::abi::Result result, Contract contract, absl::string_view what) {
  if (result == nccl::abi::kSuccess) return absl::OkStatus();
  watch_.Broken(contract, absl::StrCat(what, " returned ", ResultName(result), " (",
                                       static_cast<int>(result), ")"));
  return absl::AbortedError("a contract is broken");
}

absl::StatusOr<std::vector<End>> Rank::Connect(int count, bool contexts) {
  std::vector<End> ends(static_cast<size_t>(count));
  for (size_t i = 0; i < ends.size(); ++i) {
    ends[i].number = static_cast<int>(i);
    if (contexts || i == 0) {
      WEFT_RETURN_IF_ERROR(Need(api_.Init(kCommId + i, &ends[i].context), Contract::kInitEach,
                                absl::StrCat("init of communicator ", i)));
    } else {
      ends[i].context = ends[0].context;
    }
  }
  int devices = 0;
  WEFT_RETURN_IF_ERROR(Need(api_.Devices(&devices), Contract::kDevicesStable, "devices"));
  if (options_.device >= devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device ", options_.device, ": the plugin has ", devices, ", numbered from 0"));
  }
  WEFT_RETURN_IF_ERROR(ListenAll(ends));
  WEFT_RETURN_IF_ERROR(ConnectAll(ends));
  return ends;
}

absl::Status Rank::ListenAll(std::vector<End>& ends) {
  std::string mine;
  for (End& end : ends) {
    std::array<unsigned char, nccl::abi::kHandleBytes + 64> handle;
    handle.fill(kUntouched);
    WEFT_RETURN_IF_ERROR(Need(api_.Listen(end.context, options_.device, handle.data(), &end.listen),
                              Contract::kListenAtOnce, "listen"));
    if (end.listen == nullptr) {
      watch_.Broken(Contract::kListenAtOnce, "listen returned a null communicator");
      return absl::AbortedError("no listener");
    }
    auto behind = handle.begin() + nccl::abi::kHandleBytes;
    auto touched =
        std::count_if(behind, handle.end(), [](auto byte) { return byte != kUntouched; });
    if (touched > 0) {
      watch_.Broken(Contract::kHandleSize,
                    absl::StrCat("listen changed ", touched, " of the 64 bytes behind the handle"));
    }
    mine.append(reinterpret_cast<char*>(handle.data()), nccl::abi::kHandleBytes);
  }
  std::string theirs;
  for (size_t at = 0; at < mine.size(); at += Channel::kMessageBytesMax) {
    WEFT_ASSIGN_OR_RETURN(
        const std::string part,
        channel_.Exchange(mine.substr(at, Channel::kMessageBytesMax), options_.timeout));
    theirs += part;
  }
  if (theirs.size() != mine.size()) return absl::CancelledError("the other rank is elsewhere");
  for (size_t i = 0; i < ends.size(); ++i) {
    std::memcpy(ends[i].peer_handle.data(), theirs.data() + i * nccl::abi::kHandleBytes,
                nccl::abi::kHandleBytes);
  }
  return absl::OkStatus();
}

absl::Status Rank::CheckAnswer(nccl::abi::Result result, const char* call,
                               nccl::abi::DeviceHandle* handle) {
  if (handle != kNoDeviceHandle) {
    watch_.Broken(Contract::kDeviceHandleUntouched, absl::StrCat(call, " wrote the device handle"));
  }
  if (result == nccl::abi::kInProgress) {
    watch_.Broken(Contract::kNotYetIsSuccess, absl::StrCat(call, " returned ncclInProgress"));
    return absl::AbortedError("not connected");
  }
  return Need(result, Contract::kConnects, call);
}

absl::Status Rank::TryConnect(End& end) {
  // Some of NCCL's callers pass a pointer to null, some null itself.
  nccl::abi::DeviceHandle* handle = nullptr;
  auto result = api_.Connect(end.context, options_.device, end.peer_handle.data(), &end.send,
                             end.number % 2 == 0 ? &handle : nullptr);
  return CheckAnswer(result, "connect", handle);
}

absl::Status Rank::TryAccept(End& end) {
  nccl::abi::DeviceHandle* handle = nullptr;
  auto result = api_.Accept(end.listen, &end.receive, end.number % 2 == 0 ? &handle : nullptr);
  WEFT_RETURN_IF_ERROR(CheckAnswer(result, "accept", handle));
  if (end.receive == nullptr) return absl::OkStatus();
  // NCCL closes the listener at once.
  void* listen = std::exchange(end.listen, nullptr);
  return Need(api_.CloseListen(listen), Contract::kListenClosesEarly, "closeListen");
}

absl::Status Rank::ConnectAll(std::vector<End>& ends) {
  absl::Time give_up = SystemClock().Now() + options_.timeout;
  size_t open = ends.size();
  while (open > 0) {
    open = 0;
    for (End& end : ends) {
      if (end.send == nullptr) WEFT_RETURN_IF_ERROR(TryConnect(end));
      if (end.receive == nullptr) WEFT_RETURN_IF_ERROR(TryAccept(end));
      open += end.send == nullptr || end.receive == nullptr ? 1 : 0;
    }
    if (open > 0 && SystemClock().Now() > give_up) {
      watch_.Broken(Contract::kConnects,
                    absl::StrCat(open, " of ", ends.size(), " connections do not stand after ",
                                 absl::FormatDuration(options_.timeout), " (--timeout)"));
      return absl::AbortedError("not connected");
    }
    if (channel_.Ended()) return absl::CancelledError("the other rank has ended");
    sched_yield();
  }
  return Meet();
}

absl::Status Rank::Close(std::vector<End>& ends, int order) {
  if (order % 2 == 1) std::reverse(ends.begin(), ends.end());
  for (End& end : ends) {
    auto close_send = [&] {
      if (end.send == nullptr) return absl::OkStatus();
      return Need(api_.CloseSend(std::exchange(end.send, nullptr)), Contract::kNoCrash,
                  "closeSend");
    };
    auto close_receive = [&] {
      if (end.receive == nullptr) return absl::OkStatus();
      return Need(api_.CloseReceive(std::exchange(end.receive, nullptr)), Contract::kNoCrash,
                  "closeRecv");
    };
    if (order >= 2) WEFT_RETURN_IF_ERROR(close_receive());
    WEFT_RETURN_IF_ERROR(close_send());
    if (order < 2) WEFT_RETURN_IF_ERROR(close_receive());
    if (end.listen != nullptr) {
      WEFT_RETURN_IF_ERROR(Need(api_.CloseListen(std::exchange(end.listen, nullptr)),
                                Contract::kNoCrash, "closeListen"));
    }
  }
  std::vector<void*> finalized;
  for (End& end : ends) {
    bool again = std::find(finalized.begin(), finalized.end(), end.context) != finalized.end();
    if (api_.per_communicator() && again) continue;
    finalized.push_back(end.context);
    WEFT_RETURN_IF_ERROR(Need(api_.Finalize(end.context), Contract::kNoCrash, "finalize"));
  }
  ends.clear();
  return absl::OkStatus();
}

}  // namespace weft::harness
