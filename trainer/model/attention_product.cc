#include "trainer/model/attention_product.h"

#include <cmath>
#include <limits>
#include <optional>

#include "trainer/device/device.h"
#include "trainer/kernels/attention.h"
#include "trainer/model/device_attention.h"

namespace weft::train {
namespace {

using kernels::AttentionInputRows;
using kernels::AttentionShape;
using kernels::Bf16;
using kernels::HeadRows;

// 0 where a query sees a key, else minus infinity: [1, 1, queries, keys].
std::optional<at::Tensor> MaskOf(const AttentionTile& tile, int64_t window,
                                 const at::TensorOptions& options) {
  if (tile.mask != AttentionTile::kBand) return std::nullopt;
  at::Tensor distance =
      at::arange(tile.distance, tile.distance + tile.queries, options.dtype(at::kLong))
          .unsqueeze(1) -
      at::arange(tile.keys, options.dtype(at::kLong));
  at::Tensor hidden = distance < 0;
  if (window > 0) hidden.logical_or_(distance >= window);
  return at::zeros({1, 1, tile.queries, tile.keys}, options)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

// What a tile's mask says, as a distance and a window.
AttentionShape ShapeOf(const AttentionInputs& inputs, const AttentionTile& tile, int64_t window) {
  const bool all = tile.mask == AttentionTile::kNone;
  return {.batch = inputs.query.size(0),
          .heads = inputs.query.size(1),
          .kv_heads = inputs.key.size(1),
          .queries = tile.queries,
          .keys = tile.keys,
          .width = inputs.query.size(3),
          .distance = all ? tile.keys : tile.distance,
          .window = all ? 0 : window,
          .scale = 1 / std::sqrt(static_cast<float>(inputs.query.size(3)))};
}

template <typename T>
HeadRows<T> RowsOf(const at::Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}
template <typename T>
AttentionInputRows<T> RowsOf(const AttentionInputs& inputs) {
  return {RowsOf<const T>(inputs.query), RowsOf<const T>(inputs.key),
          RowsOf<const T>(inputs.value)};
}

template <typename Function>
void ByNumberType(at::ScalarType type, Function function) {
  type == at::kFloat ? function(float{}) : function(Bf16{});
}

bool HasRows(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1; }

at::Tensor WithRows(const at::Tensor& x) { return HasRows(x) ? x : x.contiguous(); }

}  // namespace

bool AttendsByOwnLoops(KernelLibrary library, const AttentionInputs& inputs) {
  const at::ScalarType type = inputs.query.scalar_type();
  return library == KernelLibrary::kWeft && !GoesDeviceWay(inputs.query) &&
         (type == at::kFloat || type == at::kBFloat16) && HasRows(inputs.query) &&
         HasRows(inputs.key) && HasRows(inputs.value) && inputs.query.numel() > 0;
}

AttentionOutputs AttendTile(KernelLibrary library, const AttentionInputs& inputs,
                            const AttentionTile& tile, int64_t window) {
  if (GoesDeviceWay(inputs.query)) {
    return DeviceAttention(inputs, tile.mask == AttentionTile::kCausal,
                           MaskOf(tile, window, inputs.query.options()));
  }
  if (!AttendsByOwnLoops(library, inputs)) {
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        inputs.query, inputs.key, inputs.value, /*dropout_p=*/0.0,
        tile.mask == AttentionTile::kCausal, MaskOf(tile, window, inputs.query.options()));
    return {out, logsumexp};
  }
  const at::Tensor& query = inputs.query;
  // A row's heads side by side, as the output projection reads them.
  AttentionOutputs outputs{
      at::empty({query.size(0), query.size(2), query.size(1), query.size(3)}, query.options())
          .transpose(1, 2),
      at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(at::kFloat))};
  ByNumberType(query.scalar_type(), [&](auto type) {
    using T = decltype(type);
    kernels::Attention().Of<T>().forward(ShapeOf(inputs, tile, window), RowsOf<T>(inputs),
                                         RowsOf<T>(outputs.out),
                                         outputs.logsumexp.data_ptr<float>());
  });
  return outputs;
}

void AttendTileBackwardInto(const at::Tensor& dout, const AttentionInputs& inputs,
                            const AttentionOutputs& outputs, const AttentionTile& tile,
                            int64_t window, const AttentionInputs& gradients) {
  const at::Tensor from = WithRows(dout), out = WithRows(outputs.out);
  const at::Tensor logsumexp = outputs.logsumexp.contiguous();
  ByNumberType(inputs.query.scalar_type(), [&](auto type) {
    using T = decltype(type);
    kernels::Attention().Of<T>().backward(ShapeOf(inputs, tile, window), RowsOf<const T>(from),
                                          RowsOf<T>(inputs), RowsOf<const T>(out),
                                          logsumexp.data_ptr<float>(), RowsOf<T>(gradients.query),
                                          RowsOf<T>(gradients.key), RowsOf<T>(gradients.value));
  });
}

AttentionInputs AttendTileBackward(KernelLibrary library, const at::Tensor& dout,
                                   const AttentionInputs& inputs, const AttentionOutputs& outputs,
                                   const AttentionTile& tile, int64_t window) {
  if (GoesDeviceWay(inputs.query)) {
    return DeviceAttentionBackward(dout, inputs, outputs, tile.mask == AttentionTile::kCausal,
                                   MaskOf(tile, window, inputs.query.options()));
  }
  if (!AttendsByOwnLoops(library, inputs)) {
    auto [dquery, dkey, dvalue] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout, inputs.query, inputs.key, inputs.value, outputs.out, outputs.logsumexp,
        /*dropout_p=*/0.0, tile.mask == AttentionTile::kCausal,
        MaskOf(tile, window, inputs.query.options()));
    return {dquery, dkey, dvalue};
  }
  const AttentionInputs gradients{at::empty(inputs.query.sizes(), inputs.query.options()),
                                  at::empty(inputs.key.sizes(), inputs.key.options()),
                                  at::empty(inputs.value.sizes(), inputs.value.options())};
  AttendTileBackwardInto(dout, inputs, outputs, tile, window, gradients);
  return gradients;
}

}  // namespace weft::train
