#include "trainer/loop/generate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "base/status.h"

namespace weft::train {
namespace {

int32_t Draw(absl::Span<const float> logits, const GenerateOptions& options, Random& random) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  size_t keep = options.top_k > 0 ? std::min(logits.size(), static_cast<size_t>(options.top_k))
                                  : logits.size();
  if (options.temperature == 0) keep = 1;
  // Ties go to the smaller number, so that the order is one.
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(),
                    [&](int32_t a, int32_t b) {
                      float x = logits[static_cast<size_t>(a)];
                      float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  if (keep == 1) return order[0];
  std::vector<double> sums(keep);
  double sum = 0;
  double largest = logits[static_cast<size_t>(order[0])];
  for (size_t i = 0; i < keep; ++i) {
    double logit = logits[static_cast<size_t>(order[i])];
    sum += std::exp((logit - largest) / options.temperature);
    sums[i] = sum;
  }
  double drawn = random.Uniform() * sum;
  auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  return order[std::min(static_cast<size_t>(found - sums.begin()), keep - 1)];
}

}  // namespace

absl::StatusOr<std::string> Generate(Gpt& model, const Tokenizer& tokenizer,
                                     const GenerateOptions& options) {
  WEFT_CHECK(tokenizer.vocab_size() <= model.config().vocabulary,
             "a tokenizer of " << tokenizer.vocab_size() << " tokens, a model of "
                               << model.config().vocabulary);
  std::vector<int32_t> prompt;
  WEFT_RETURN_IF_ERROR(tokenizer.Encode(options.prompt, prompt));
  std::vector<int64_t> tokens = {tokenizer.eod_id()};
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  Random random(options.seed, /*stream=*/0x7E87);
  for (int64_t i = 0; i < options.tokens; ++i) {
    int64_t length =
        std::min<int64_t>(static_cast<int64_t>(tokens.size()), model.config().sequence);
    at::Tensor input = at::empty({1, length}, at::kLong);
    std::memcpy(input.data_ptr(), tokens.data() + tokens.size() - static_cast<size_t>(length),
                static_cast<size_t>(length) * sizeof(int64_t));
    at::Tensor logits = model.Forward(input, {.last_only = true}).logits.to(at::kFloat);
    // A model may have more rows than the tokenizer has tokens; those stand for no text.
    int32_t next = Draw({logits.data_ptr<float>(), static_cast<size_t>(tokenizer.vocab_size())},
                        options, random);
    if (next == tokenizer.eod_id()) break;
    tokens.push_back(next);
  }
  std::vector<int32_t> text(tokens.begin() + 1, tokens.end());
  return tokenizer.Decode(text);
}

}  // namespace weft::train
