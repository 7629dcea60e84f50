// A model that writes: it keeps the keys and values of what it has read, so that a token costs one
// pass over the weights and over what is kept.
//
//   auto decoder = Decoder::Create(model, /*sequences=*/2);
//   logits = decoder->Prefill({{0, tokens}, {1, others}});  // of the tokens after these
//   logits = decoder->Step({{0, token}, {1, other}});       // one more token of each
//
// What is kept of a layer: keys, turned by their positions, and values, once for each key-value
// head, of the newest `window` tokens where the layer has a window. Logits are those of Gpt's
// Forward up to rounding; of a mixture of experts, those without a capacity: no choice is dropped.
// A sequence's logits do not depend on the sequences beside it, to the bit.
//
// Prefill runs the operations of training, on the rows of all its sequences together (in fp16, of
// one at a time); Step the loops of trainer/kernels/decode.h. The model, whole on this process, and
// its parameters outlive the decoder. Not thread-safe. LibTorch's exceptions pass through.
#ifndef WEFT_TRAINER_MODEL_DECODER_H_
#define WEFT_TRAINER_MODEL_DECODER_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/units.h"
#include "trainer/model/gpt.h"

namespace weft::train {

struct NextToken {
  int64_t sequence = 0;
  int64_t token = 0;
};

struct Beginning {
  int64_t sequence = 0;
  absl::Span<const int64_t> tokens;
};

class Decoder {
 public:
  // For sequences [0, sequences), each of up to model.sequence tokens. Memory is taken as they
  // grow.
  static std::unique_ptr<Decoder> Create(const Gpt& model, int64_t sequences);
  // Memory of a sequence that grows to `tokens` tokens: keys, values, activations and logits, where
  // the kernel gives huge pages.
  static Bytes MemoryOf(const Gpt& model, int64_t tokens);
  virtual ~Decoder() = default;

  // Begins different sequences, each with 1 to model.sequence tokens; what they had is forgotten.
  // Logits [sequences, vocab] of the tokens that follow, valid until the next call.
  virtual absl::Span<const float> Prefill(absl::Span<const Beginning> beginnings) = 0;
  absl::Span<const float> Prefill(int64_t sequence, absl::Span<const int64_t> tokens) {
    const Beginning one{sequence, tokens};
    return Prefill(absl::MakeConstSpan(&one, 1));
  }
  // Adds a token to each of different sequences that have begun and have room. Logits [tokens,
  // vocab], valid until the next call.
  virtual absl::Span<const float> Step(absl::Span<const NextToken> next) = 0;

  // Tokens of a sequence so far; 0: it has not begun.
  virtual int64_t length(int64_t sequence) const = 0;
  // Bytes of weights, keys and values that all Steps had to read, each once a step.
  virtual int64_t bytes_read() const = 0;
  // Bytes of weights that a Step reads, without experts.
  virtual int64_t weight_bytes() const = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_DECODER_H_
