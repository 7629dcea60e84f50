#include <sys/types.h>

#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "tools/nccl_harness/scenarios.h"

namespace weft::harness {
namespace {

using nccl::abi::Result;

absl::Status CheckProperties(Rank& rank, int device, const Properties& properties) {
  auto wrong = [&](const std::string& what) {
    rank.watch().Broken(Contract::kPropertiesValid, absl::StrCat("device ", device, ": ", what));
  };
  if (properties.bytes_overrun > 0) {
    rank.watch().Broken(Contract::kPropertiesSize,
                        absl::StrCat("getProperties of version ", rank.api().version(), " wrote ",
                                     properties.bytes_overrun, " bytes behind its struct"));
  }
  if (properties.name.empty()) wrong("no name");
  if ((properties.ptr_support & nccl::abi::kPointerHost) == 0) {
    wrong(absl::StrCat("ptrSupport ", properties.ptr_support, " is without host memory (1)"));
  }
  if (properties.max_comms < 1) wrong(absl::StrCat("maxComms ", properties.max_comms));
  if (properties.max_recvs < 1) wrong(absl::StrCat("maxRecvs ", properties.max_recvs));
  bool host = properties.device_type == nccl::abi::kDeviceHost;
  bool unpack = properties.device_type == nccl::abi::kDeviceUnpack &&
                properties.device_version == nccl::abi::kDeviceUnpackVersion;
  if (!host && !unpack) {
    wrong(absl::StrCat("netDeviceType ", properties.device_type, " version ",
                       properties.device_version, "; NCCL takes 0, or 1 with version 7"));
  }
  constexpr size_t kBytesMax = size_t{1} << 40;
  for (auto [name, bytes] : {std::pair{"maxP2pBytes", properties.max_p2p_bytes},
                             std::pair{"maxCollBytes", properties.max_coll_bytes}}) {
    if (bytes < 1 || bytes > kBytesMax) {
      wrong(absl::StrCat(name, " ", bytes, " is not from 1 to 2^40"));
    }
  }
  int parts_max = rank.api().version() >= 12 ? 8 : 4;
  if (properties.virtual_count < 1 || properties.virtual_count > parts_max) {
    wrong(absl::StrCat("vProps of ", properties.virtual_count, " devices; 1 to ", parts_max));
  }
  if (!properties.pci_path.empty()) {
    std::error_code error;
    auto real = std::filesystem::canonical(properties.pci_path, error);
    if (error || real != properties.pci_path) {
      wrong(absl::StrCat("pciPath \"", properties.pci_path, "\" is no real path"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStable(Rank& rank, int device, const Properties& first) {
  // Another thread, as NCCL's service threads ask as well.
  Properties second;
  Result result = nccl::abi::kSuccess;
  std::thread([&] { result = rank.api().GetProperties(device, &second); }).join();
  WEFT_RETURN_IF_ERROR(rank.Need(result, Contract::kPropertiesStable, "a second getProperties"));
  bool same = first.name == second.name && first.pci_path == second.pci_path &&
              first.speed == second.speed && first.max_recvs == second.max_recvs &&
              first.max_comms == second.max_comms && first.ptr_support == second.ptr_support;
  if (!same) {
    rank.watch().Broken(Contract::kPropertiesStable,
                        absl::StrCat("device ", device, " was \"", first.name, "\", ", first.speed,
                                     " Mbit/s and is \"", second.name, "\", ", second.speed));
  }
  // The string that NCCL was given first.
  if (first.name_pointer != nullptr && first.name != first.name_pointer) {
    rank.watch().Broken(Contract::kPropertiesStable,
                        absl::StrCat("the string \"", first.name, "\" has become \"",
                                     first.name_pointer, "\"; NCCL keeps the pointer"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> CountDevices(Rank& rank) {
  int first = 0, second = 0;
  WEFT_RETURN_IF_ERROR(rank.Need(rank.api().Devices(&first), Contract::kDevicesStable, "devices"));
  WEFT_RETURN_IF_ERROR(rank.Need(rank.api().Devices(&second), Contract::kDevicesStable, "devices"));
  if (first < 1) {
    rank.watch().Broken(Contract::kDevicesStable,
                        absl::StrCat("init succeeds with ", first, " devices"));
    return absl::AbortedError("no devices");
  }
  if (first != second) {
    rank.watch().Broken(Contract::kDevicesStable,
                        absl::StrCat("devices said ", first, ", then ", second));
  }
  return first;
}

void CheckVirtualDevices(Rank& rank, int count) {
  rank.watch().SetStep("makeVDevice of a device that is not there");
  int device = -1, after = 0;
  Result made = rank.api().MakeVirtualDevice(&device, {0, count + 100});
  if (made == nccl::abi::kSuccess) {
    rank.watch().Broken(Contract::kVirtualDeviceFails,
                        absl::StrCat("merged device 0 with ", count + 100, ", which is not there"));
  }
  rank.api().Devices(&after);
  if (after != count) {
    rank.watch().Broken(
        Contract::kVirtualDeviceFails,
        absl::StrCat("devices went from ", count, " to ", after, " by a makeVDevice that failed"));
  }
  rank.watch().SetStep("makeVDevice of one device");
  device = -1;
  made = rank.api().MakeVirtualDevice(&device, {0});
  rank.api().Devices(&after);
  if (made != nccl::abi::kSuccess) {
    rank.watch().Broken(Contract::kVirtualDeviceOfOne,
                        absl::StrCat("makeVDevice of device 0 alone returned ", made));
  } else if (device < 0 || device >= after) {
    rank.watch().Broken(
        Contract::kVirtualDeviceOfOne,
        absl::StrCat("device 0 alone became device ", device, " of ", after, " devices"));
  }
}

absl::Status CheckDevices(Rank& rank) {
  rank.watch().SetStep("devices and properties");
  WEFT_ASSIGN_OR_RETURN(int count, CountDevices(rank));
  std::set<std::string> names;
  for (int device = 0; device < count; ++device) {
    Properties properties;
    WEFT_RETURN_IF_ERROR(rank.Need(rank.api().GetProperties(device, &properties),
                                   Contract::kPropertiesValid, "getProperties"));
    WEFT_RETURN_IF_ERROR(CheckProperties(rank, device, properties));
    WEFT_RETURN_IF_ERROR(CheckStable(rank, device, properties));
    if (!names.insert(properties.name).second) {
      rank.watch().Broken(Contract::kPropertiesValid,
                          absl::StrCat("two devices are named \"", properties.name,
                                       "\"; NCCL finds devices by name"));
    }
  }
  if (rank.api().has_virtual_devices()) CheckVirtualDevices(rank, count);
  return absl::OkStatus();
}

}  // namespace

absl::Status Introspect(Rank& rank) {
  NetApi& api = rank.api();
  rank.watch().SetStep("table");
  if (auto missing = api.MissingFunctions(); !missing.empty()) {
    rank.watch().Broken(Contract::kTableComplete,
                        absl::StrCat("null in the table: ", absl::StrJoin(missing, ", ")));
    return absl::AbortedError("table");
  }
  rank.watch().SetStep("init of three communicators");
  void* contexts[3] = {};
  for (void*& context : contexts) {
    WEFT_RETURN_IF_ERROR(rank.Need(api.Init(reinterpret_cast<uint64_t>(&context), &context),
                                   Contract::kInitEach, "init"));
  }
  WEFT_RETURN_IF_ERROR(CheckDevices(rank));
  rank.watch().SetStep("finalize");
  for (int i : {1, 0, 2}) {
    WEFT_RETURN_IF_ERROR(rank.Need(api.Finalize(contexts[i]), Contract::kInitEach, "finalize"));
  }
  if (api.per_communicator()) {
    WEFT_RETURN_IF_ERROR(
        rank.Need(api.Finalize(nullptr), Contract::kFinalizeNull, "finalize of null"));
  }
  rank.watch().SetStep("init after the last finalize");
  void* context = nullptr;
  WEFT_RETURN_IF_ERROR(rank.Need(api.Init(99, &context), Contract::kInitAgain, "init"));
  WEFT_RETURN_IF_ERROR(rank.Need(api.Finalize(context), Contract::kInitAgain, "finalize"));
  return absl::OkStatus();
}

}  // namespace weft::harness
