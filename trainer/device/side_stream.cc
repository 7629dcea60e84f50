#include "trainer/device/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::train {

SideStream::SideStream(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  before_.emplace(device.type());
  before_->record(guard.getStream(device));
  // LibTorch has 32 streams of each priority, and gives them in turn: one of high priority is never
  // the stream that a graph is being captured on. Copies have no priority.
  stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

void SideStream::Run(const std::function<void()>& body) {
  if (!stream_.has_value()) return body();
  const c10::StreamGuard guard(*stream_);
  before_->block(*stream_);
  body();
  stream_->synchronize();
}

}  // namespace weft::train
