// Keys and values of one layer for the tokens that sequences have read so far, as the loops of
// kernels/decode.h read them when text is generated.
#ifndef WEFT_TRAINER_MODEL_KEY_VALUE_CACHE_H_
#define WEFT_TRAINER_MODEL_KEY_VALUE_CACHE_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "base/units.h"
#include "trainer/config.h"
#include "trainer/kernels/decode.h"

namespace weft::train {

// Keeps the newest tokens of each sequence: as many as the layer's window has, or all. Takes memory
// as it is written. Used by one thread at a time.
class KeyValueCache {
 public:
  // For positions [0, model.sequence) of sequences [0, sequences). `type`: of T below.
  KeyValueCache(const ModelConfig& model, int64_t layer, int64_t sequences, at::ScalarType type);
  // What the kernel gives to a sequence of `tokens` tokens, in huge pages where it can.
  static Bytes MemoryOf(const ModelConfig& model, int64_t layer, int64_t element_bytes,
                        int64_t tokens);

  int64_t room() const { return room_; }  // tokens of a sequence
  // Keeps the key and the value, [key-value heads, width] each, of the token at `position`, in the
  // place of the token `room` before it.
  template <typename T>
  void Keep(int64_t sequence, int64_t position, const T* key, const T* value) {
    for (int64_t head = 0; head < heads_; ++head) {
      const int64_t at = ((sequence * heads_ + head) * room_ + position % room_) * width_;
      std::copy_n(key + head * width_, width_, static_cast<T*>(keys_.data_ptr()) + at);
      std::copy_n(value + head * width_, width_, static_cast<T*>(values_.data_ptr()) + at);
    }
  }
  // What the token at `position`, which is kept, sees of its sequence. query, out: [heads, width].
  template <typename T>
  kernels::CachedAttention<T> Attention(int64_t sequence, int64_t position, const T* query,
                                        T* out) const {
    const int64_t from = sequence * heads_ * room_ * width_;
    return {query,
            static_cast<const T*>(keys_.data_ptr()) + from,
            static_cast<const T*>(values_.data_ptr()) + from,
            room_ * width_,
            std::min(position + 1, room_),
            out};
  }

 private:
  int64_t heads_, room_, width_;  // key-value heads, tokens, width of a head
  at::Tensor keys_, values_;      // [sequences, heads, room, width]; position p is at p % room
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_KEY_VALUE_CACHE_H_
