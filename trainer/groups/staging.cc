#include "trainer/groups/staging.h"

#include <cstdint>

#include "trainer/device/device.h"

namespace weft::train {
namespace {

// Pinned for a GPU's tensor, so that the GPU copies by itself.
at::Tensor HostMemory(const at::Tensor& tensor) {
  return at::empty(
      tensor.sizes(),
      at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(tensor.is_cuda()));
}

// Calls body(rows of a, the same rows of b) for each part that has rows.
template <typename Body>
void ForRows(const at::Tensor& a, const at::Tensor& b, const RowParts& parts, Body body) {
  for (size_t i = 0; i < parts.counts.size(); ++i) {
    const auto begin = static_cast<int64_t>(parts.begins[i]);
    const auto rows = static_cast<int64_t>(parts.counts[i]);
    if (rows > 0) body(a.narrow(0, begin, rows), b.narrow(0, begin, rows));
  }
}

}  // namespace

at::Tensor Outgoing(const at::Tensor& tensor) {
  return GoesDeviceWay(tensor) ? HostMemory(tensor).copy_(tensor) : tensor;
}

at::Tensor Incoming(const at::Tensor& tensor, Arrivals& arrivals) {
  if (!GoesDeviceWay(tensor)) return tensor;
  return arrivals.emplace_back(HostMemory(tensor), tensor).first;
}

at::Tensor InPlace(const at::Tensor& tensor, Arrivals& arrivals) {
  if (!GoesDeviceWay(tensor)) return tensor;
  return arrivals.emplace_back(Outgoing(tensor), tensor).first;
}

at::Tensor OutgoingRows(const at::Tensor& tensor, const RowParts& parts) {
  if (!GoesDeviceWay(tensor)) return tensor;
  at::Tensor host = HostMemory(tensor);
  ForRows(host, tensor, parts, [](at::Tensor to, const at::Tensor& from) { to.copy_(from); });
  return host;
}

at::Tensor IncomingRows(const at::Tensor& tensor, const RowParts& parts, Arrivals& arrivals) {
  if (!GoesDeviceWay(tensor)) return tensor;
  at::Tensor host = HostMemory(tensor);
  ForRows(host, tensor, parts, [&arrivals](const at::Tensor& from, const at::Tensor& to) {
    arrivals.emplace_back(from, to);
  });
  return host;
}

}  // namespace weft::train
