#include "tools/nccl_harness/contract.h"

#include <array>

namespace weft::harness {
namespace {

// clang-format off
constexpr auto kRows = std::to_array<ContractRow>({
    {Contract::kNoCrash, "no-crash", "No call ends the process or throws."},
    {Contract::kTableComplete, "table-complete", "The table has a name and every function that NCCL calls without asking."},
    {Contract::kInitEach, "init-each", "init succeeds once for every communicator (v11+: with a context of its own)."},
    {Contract::kFinalizeNull, "finalize-null", "finalize accepts a null context, which NCCL 2.28 passes after a failed init (v11+)."},
    {Contract::kInitAgain, "init-again", "init succeeds again after the last communicator has gone."},
    {Contract::kDevicesStable, "devices-stable", "devices reports the same number, above 0, at every call."},
    {Contract::kPropertiesValid, "properties-valid", "Properties are ones that NCCL accepts: unique names, host memory, sane limits."},
    {Contract::kPropertiesStable, "properties-stable", "getProperties is pure, and its strings live for ever."},
    {Contract::kPropertiesSize, "properties-size", "getProperties writes the version's struct and not a byte more."},
    {Contract::kVirtualDeviceFails, "virtual-device-fails", "makeVDevice that fails leaves the devices as they were."},
    {Contract::kVirtualDeviceOfOne, "virtual-device-of-one", "makeVDevice of one device succeeds, with a number that devices counts."},
    {Contract::kListenAtOnce, "listen-at-once", "listen returns a communicator at once."},
    {Contract::kHandleSize, "handle-size", "listen writes at most 128 bytes of handle."},
    {Contract::kNeverBlocks, "never-blocks", "connect, accept, isend, irecv and test return at once."},
    {Contract::kNotYetIsSuccess, "not-yet-is-success", "connect and accept that are not ready return success and a null communicator."},
    {Contract::kConnects, "connects", "A connection stands after connect and accept were called in turn for a while."},
    {Contract::kDeviceHandleUntouched, "device-handle-untouched", "A plugin of host type does not touch the device handle, which may be a null pointer."},
    {Contract::kListenClosesEarly, "listen-closes-early", "closeListen right after accept leaves the connection alone."},
    {Contract::kRegisterAgain, "register-again", "The same memory can be registered many times and deregistered in any order."},
    {Contract::kRegisterAnyTime, "register-any-time", "regMr and deregMr succeed on the service thread while the progress thread sends."},
    {Contract::kTransientIsSuccess, "transient-is-success", "isend, irecv and test on a sound connection return success, ready or not."},
    {Contract::kRequestOverwritten, "request-overwritten", "irecv writes *request, in which NCCL leaves a hint (v9+)."},
    {Contract::kZeroBytes, "zero-bytes", "A message of 0 bytes is a message like any other."},
    {Contract::kRequestsInFlight, "requests-in-flight", "32 receives can be posted on one communicator; at least 8 are taken before any completes."},
    {Contract::kCompletes, "completes", "Every request completes while its tests are called."},
    {Contract::kDataIntact, "data-intact", "What arrives is what was sent."},
    {Contract::kWritesInBounds, "writes-in-bounds", "Nothing is written outside of the posted buffer."},
    {Contract::kReceiveDoneMeansData, "receive-done-means-data", "A receive is done only once its data is there."},
    {Contract::kSendDoneFreesBuffer, "send-done-frees-buffer", "A send is done only once its buffer may be overwritten."},
    {Contract::kReceivesInOrder, "receives-in-order", "Messages with one tag match receives in the order in which both were posted."},
    {Contract::kTagsPickSlots, "tags-pick-slots", "In a group of receives, the tag says which buffer a message belongs to."},
    {Contract::kSizesReceived, "sizes-received", "test reports how many bytes really came, which may be fewer than posted."},
    {Contract::kSizesInGroup, "sizes-in-group", "test of a receive writes one size for each of its buffers and no more."},
    {Contract::kSizesOfSend, "sizes-of-send", "test of a send writes at most one size."},
    {Contract::kCloseDelivers, "close-delivers", "What was sent and done before closeSend reaches the receiver."},
    {Contract::kPeerDeathReported, "peer-death-reported", "When the peer's process dies, a test returns an error within the bound."},
    {Contract::kDescriptorsReturned, "descriptors-returned", "Everything closed and finalized, no descriptor is left open."},
    {Contract::kThreadsReturned, "threads-returned", "Everything closed and finalized, no thread of the plugin runs: NCCL unloads it next."},
});
// clang-format on

}  // namespace

absl::Span<const ContractRow> Contracts() { return kRows; }

const ContractRow& RowOf(Contract contract) { return kRows[static_cast<size_t>(contract)]; }

const ContractRow* FindContract(absl::string_view name) {
  for (const ContractRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace weft::harness
