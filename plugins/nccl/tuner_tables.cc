// The tuner's tables that NCCL looks up in the net plugin's library, thin skins over tuner.h: they
// translate and decide nothing.
#include <exception>

#include "plugins/nccl/abi/tuner.h"
#include "plugins/nccl/tuner.h"

namespace weft::nccl {
namespace {

using abi::LogFunction;
using abi::Result;

constexpr char kName[] = "weft";

// An error would fail NCCL's communicator or collective: without memory there is no tuner, and what
// `function` leaves is NCCL's own choice.
template <typename Function>
Result Quietly(Function function) {
  try {
    function();
  } catch (const std::exception&) {
    return abi::kSuccess;
  }
  return abi::kSuccess;
}

Result InitOld(size_t ranks, size_t nodes, LogFunction log, void** context) {
  *context = nullptr;
  return Quietly([&] { *context = Tuner::Create(ranks, nodes, log).release(); });
}
Result InitNew(void** context, uint64_t /*comm_id*/, size_t ranks, size_t nodes, LogFunction log,
               abi::NvlDomainInfo* /*domains*/, abi::TunerConstants* /*constants*/) {
  return InitOld(ranks, nodes, log, context);
}
Result ChooseV2(void* context, abi::Collective collective, size_t bytes, int /*collnet*/,
                int /*nvls*/, int /*pipe_ops*/, int* algorithm, int* protocol, int* /*channels*/) {
  if (context == nullptr) return abi::kSuccess;
  return Quietly(
      [&] { static_cast<Tuner*>(context)->Choose(collective, bytes, algorithm, protocol); });
}
Result ChooseV3(void* context, abi::Collective collective, size_t bytes, int /*pipe_ops*/,
                float** cost_table, int algorithms, int protocols, int* /*channels*/) {
  if (context == nullptr) return abi::kSuccess;
  return Quietly([&] {
    // float[algorithms][protocols], whatever its type says.
    static_cast<Tuner*>(context)->FillCosts(collective, bytes, reinterpret_cast<float*>(cost_table),
                                            algorithms, protocols);
  });
}
Result ChooseV4(void* context, abi::Collective collective, size_t bytes, int pipe_ops,
                float** cost_table, int algorithms, int protocols, int /*registered*/,
                int* channels) {
  return ChooseV3(context, collective, bytes, pipe_ops, cost_table, algorithms, protocols,
                  channels);
}
Result Finish(void* context) {
  delete static_cast<Tuner*>(context);
  return abi::kSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))

WEFT_EXPORT const abi::TunerV2 ncclTunerPlugin_v2;
const abi::TunerV2 ncclTunerPlugin_v2 = {kName, InitOld, ChooseV2, Finish};
WEFT_EXPORT const abi::TunerV3 ncclTunerPlugin_v3;
const abi::TunerV3 ncclTunerPlugin_v3 = {kName, InitOld, ChooseV3, Finish};
WEFT_EXPORT const abi::TunerV4 ncclTunerPlugin_v4;
const abi::TunerV4 ncclTunerPlugin_v4 = {kName, InitOld, ChooseV4, Finish};
WEFT_EXPORT const abi::TunerV5 ncclTunerPlugin_v5;
const abi::TunerV5 ncclTunerPlugin_v5 = {kName, InitNew, ChooseV4, Finish};
WEFT_EXPORT const abi::TunerV6 ncclTunerPlugin_v6;
const abi::TunerV6 ncclTunerPlugin_v6 = {kName, InitNew, ChooseV4, Finish, nullptr};
// NOLINTEND(readability-identifier-naming)

}  // namespace weft::nccl
