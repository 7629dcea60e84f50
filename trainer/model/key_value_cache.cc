#include "trainer/model/key_value_cache.h"

namespace weft::train {
namespace {

int64_t RoomOf(const ModelConfig& model, int64_t layer) {
  const int64_t window = model.WindowOf(layer);
  return window > 0 ? std::min(window, model.sequence) : model.sequence;
}

}  // namespace

KeyValueCache::KeyValueCache(const ModelConfig& model, int64_t layer, int64_t sequences,
                             at::ScalarType type)
    : heads_(model.KvHeads()),
      room_(RoomOf(model, layer)),
      width_(model.hidden / model.heads),
      keys_(at::empty({sequences, heads_, room_, width_}, at::TensorOptions(type))),
      values_(at::empty_like(keys_)) {}

Bytes KeyValueCache::MemoryOf(const ModelConfig& model, int64_t layer, int64_t element_bytes,
                              int64_t tokens) {
  constexpr int64_t kHugePage = 2 << 20;  // bytes; the first token of a head may take one whole
  const int64_t room = RoomOf(model, layer);
  const int64_t token = model.hidden / model.heads * element_bytes;  // bytes of a head's keys
  const int64_t pages = (std::min(tokens, room) * token + kHugePage - 1) / kHugePage;
  return Bytes(2 * model.KvHeads() * std::min(room * token, pages * kHugePage));
}

}  // namespace weft::train
