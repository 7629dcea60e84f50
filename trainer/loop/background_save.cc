#include "trainer/loop/background_save.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/device/side_stream.h"
#include "trainer/groups/status_error.h"

namespace weft::train {
namespace {

// The bytes of `parts` into `pool`, where they are from now on.
void MoveInto(std::vector<std::byte>& pool, std::vector<BufferPart>& parts) {
  size_t bytes = 0;
  for (const BufferPart& part : parts) bytes += part.bytes.size();
  pool.resize(bytes);
  std::byte* to = pool.data();
  for (BufferPart& part : parts) {
    std::memcpy(to, part.bytes.data(), part.bytes.size());
    part.bytes = {to, part.bytes.size()};
    to += part.bytes.size();
  }
}

}  // namespace

absl::Status BackgroundSave::Begin(const RunPosition& position, const ParameterSets& parameters,
                                   Group& group, bool& began, SavedInBackground& saved) {
  // Rank 0 is done when all others have nothing left to do but to end.
  saved = {};
  const bool is_busy =
      saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  WEFT_ASSIGN_OR_RETURN(const std::string busy, group.FromFirst(is_busy ? "busy" : ""));
  began = busy.empty();
  if (!began) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(Finish(saved));
  std::promise<absl::Status> copied;
  copied_ = copied.get_future();
  under_way_.step = position.step;
  saving_ = StartUnbound([this, position, &parameters, copied = std::move(copied),
                          beside = SideStream(DeviceOf(parameters))]() mutable -> absl::Status {
    std::deque<std::vector<float>> values;
    std::vector<BufferPart> parts;
    std::string optimizer;
    const absl::Status status = Guarded([&] {
      if (before_copy_) before_copy_();
      const SaveTimes::Scope scope(&times_, SavePhase::kCopy);
      beside.Run([&] { parts = PartsOf(parameters, values); });
      MoveInto(pool_, parts);
      optimizer = std::string(parameters.optimizer().name());
      return absl::OkStatus();
    });
    copied.set_value(status);
    WEFT_RETURN_IF_ERROR(status);
    values.clear();
    return Guarded([&] { return write_(position, optimizer, parts, under_way_.failure); });
  });
  return absl::OkStatus();
}

absl::Status BackgroundSave::FinishCopy() {
  return copied_.valid() ? copied_.get() : absl::OkStatus();
}

absl::Status BackgroundSave::Finish(SavedInBackground& saved) {
  saved = {};
  if (!saving_.valid()) return absl::OkStatus();
  const absl::Status status = saving_.get();
  SavedInBackground ended = std::exchange(under_way_, {});
  if (status.ok()) saved = std::move(ended);
  return status;
}

}  // namespace weft::train
