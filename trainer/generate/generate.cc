#include "trainer/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "trainer/config.h"
#include "trainer/model/decoder.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

constexpr uint64_t kDrawStream = 0x7E87;
// No more texts are read together than have so many tokens: the activations of a layer are theirs.
constexpr size_t kTokensTogether = 4096;
constexpr double kMiB = 1 << 20;
// What the tokenizer writes for bytes that are no character yet.
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

double SecondsSince(int64_t start) {
  return static_cast<double>(SystemClock::Nanoseconds() - start) * 1e-9;
}

// Equal tokens come by their numbers, so that there is one order.
struct Likelier {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// Draws one of `among`, of which the first `count` have `sums`, sums of their weights so far.
int32_t Pick(const std::vector<int32_t>& among, const std::vector<double>& sums, Random& random) {
  const double drawn = random.Uniform() * sums.back();
  const auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  return among[std::min(static_cast<size_t>(found - sums.begin()), sums.size() - 1)];
}

int32_t Draw(absl::Span<const float> logits, const GenerateOptions& options, Random& random) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0 || options.top_k == 1) {
    return static_cast<int32_t>(likeliest - logits.begin());
  }
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const Likelier likelier{logits.data()};
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(options.top_k));
  } else if (options.top_p < 1) {
    std::sort(order.begin(), order.end(), likelier);
  }
  const double largest = *likeliest;
  std::vector<double> sums;
  sums.reserve(order.size());
  double sum = 0;
  for (int32_t token : order) {
    sum += std::exp((logits[static_cast<size_t>(token)] - largest) / options.temperature);
    sums.push_back(sum);
  }
  if (options.top_p < 1) {  // the first whose sum reaches the part, and those before it
    const auto last = std::lower_bound(sums.begin(), sums.end(), options.top_p * sum);
    sums.resize(std::min(sums.size(), static_cast<size_t>(last - sums.begin()) + 1));
  }
  return Pick(order, sums, random);
}

// The text without characters at its end that are not whole yet.
absl::string_view WholeCharacters(absl::string_view text) {
  while (absl::EndsWith(text, kReplacement)) text.remove_suffix(kReplacement.size());
  return text;
}

class Writer {
 public:
  Writer(const Gpt& model, const Tokenizer& tokenizer, absl::Span<const std::string> prompts,
         const GenerateOptions& options, const OnGenerated& on_part)
      : model_(model),
        tokenizer_(tokenizer),
        prompts_(prompts),
        options_(options),
        on_part_(on_part),
        context_(model.config().sequence),
        slots_(std::min(prompts.size(), static_cast<size_t>(options.batch))) {
    result_.texts.resize(prompts.size());
  }

  absl::StatusOr<Generated> Run() {
    WEFT_RETURN_IF_ERROR(Encode());
    if (prompts_.empty()) return std::move(result_);
    WEFT_RETURN_IF_ERROR(CheckMemory());
    decoder_ = Decoder::Create(model_, static_cast<int64_t>(slots_.size()));
    while (true) {
      WEFT_RETURN_IF_ERROR(FillSlots());
      std::vector<NextToken> next;
      for (size_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].has_value()) {
          next.push_back({static_cast<int64_t>(slot), slots_[slot]->tokens.back()});
        }
      }
      if (next.empty()) break;
      WEFT_RETURN_IF_ERROR(Step(next));
    }
    result_.speed.decode_bytes = decoder_->bytes_read();
    return std::move(result_);
  }

 private:
  struct Text {
    size_t number = 0;
    std::vector<int64_t> tokens;  // from the beginning of the document
    Random random;
    size_t given = 0;  // bytes of the text that are known outside, the prompt's among them
  };

  absl::Status Encode() {
    for (const std::string& prompt : prompts_) {
      std::vector<int32_t> ids;
      WEFT_RETURN_IF_ERROR(tokenizer_.Encode(prompt, ids));
      const size_t number = encoded_.size();
      std::vector<int64_t>& tokens = encoded_.emplace_back(1, tokenizer_.eod_id());
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      if (static_cast<int64_t>(tokens.size()) > context_ && !options_.cut_prompts) {
        return absl::InvalidArgumentError(absl::StrCat(
            "prompt ", number + 1, " (\"", prompt.substr(0, 40), prompt.size() > 40 ? "..." : "",
            "\") has ", ids.size(), " tokens; the model reads ", context_,
            " at a time, of which the document's beginning is one: shorten it to ", context_ - 1));
      }
      result_.texts[number].prompt_tokens = static_cast<int64_t>(ids.size());
    }
    return absl::OkStatus();
  }

  absl::Status CheckMemory() const {
    int64_t longest = 0;
    for (const std::vector<int64_t>& tokens : encoded_) {
      longest = std::max(longest, static_cast<int64_t>(tokens.size()));
    }
    longest = std::min(context_, longest + std::min(context_, options_.tokens));
    const double each = static_cast<double>(Decoder::MemoryOf(model_, longest).count());
    const auto memory = static_cast<double>(options_.memory.count());
    const double room = memory - ModelBytes();
    if (memory == 0 || each * static_cast<double>(slots_.size()) <= room) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "batch = %d: %d texts of up to %d tokens take %.0f MiB at a time, and beside the model's "
        "%.0f MiB there are %.0f MiB; %d at a time fit",
        options_.batch, slots_.size(), longest, each * static_cast<double>(slots_.size()) / kMiB,
        ModelBytes() / kMiB, std::max(0.0, room) / kMiB,
        static_cast<int64_t>(std::max(0.0, room) / each)));
  }

  double ModelBytes() const {
    const int count = static_cast<int>(GptParameters(model_.config()).size());
    double bytes = 0;
    for (int i = 0; i < count; ++i) bytes += static_cast<double>(model_.parameter(i).nbytes());
    return bytes;
  }

  // Begins texts in free slots, and goes on with those that outgrew the context, as many of them
  // together as there is memory for: after this every text in a slot has room for a step.
  absl::Status FillSlots() {
    while (true) {
      std::vector<Beginning> beginnings;
      size_t tokens = 0;
      for (size_t slot = 0; slot < slots_.size() && tokens < kTokensTogether; ++slot) {
        std::optional<Text>& text = slots_[slot];
        const auto number = static_cast<int64_t>(slot);
        if (!text.has_value() && waiting_ < encoded_.size()) {
          text = Text{waiting_, encoded_[waiting_], Random(options_.seed + waiting_, kDrawStream)};
          ++waiting_;
          WEFT_ASSIGN_OR_RETURN(const std::string prompt, Decoded(*text));
          text->given = prompt.size();
          beginnings.push_back({number, Newest(*text, context_)});
        } else if (text.has_value() && decoder_->length(number) == context_) {
          beginnings.push_back({number, Newest(*text, std::max<int64_t>(1, context_ / 2))});
        } else {
          continue;
        }
        tokens += beginnings.back().tokens.size();
      }
      if (beginnings.empty()) return absl::OkStatus();
      WEFT_RETURN_IF_ERROR(Read(beginnings, tokens));
    }
  }

  static absl::Span<const int64_t> Newest(const Text& text, int64_t most) {
    const absl::Span<const int64_t> all = text.tokens;
    return all.last(std::min(all.size(), static_cast<size_t>(most)));
  }

  // `rows`: what the decoder was given, each with its text's sequence; logits of each follow one
  // another.
  template <typename Row>
  absl::StatusOr<std::vector<int32_t>> DrawAll(const std::vector<Row>& rows,
                                               absl::Span<const float> logits) {
    const size_t vocabulary = logits.size() / rows.size();
    std::vector<int32_t> drawn;
    for (size_t row = 0; row < rows.size(); ++row) {
      WEFT_ASSIGN_OR_RETURN(drawn.emplace_back(),
                            DrawFor(*slots_[static_cast<size_t>(rows[row].sequence)],
                                    logits.subspan(row * vocabulary, vocabulary)));
    }
    return drawn;
  }

  template <typename Row>
  absl::Status AddAll(const std::vector<Row>& rows, const std::vector<int32_t>& drawn) {
    for (size_t row = 0; row < rows.size(); ++row) {
      WEFT_RETURN_IF_ERROR(Add(static_cast<size_t>(rows[row].sequence), drawn[row]));
    }
    return absl::OkStatus();
  }

  absl::Status Read(const std::vector<Beginning>& beginnings, size_t tokens) {
    const int64_t start = SystemClock::Nanoseconds();
    WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> drawn,
                          DrawAll(beginnings, decoder_->Prefill(beginnings)));
    result_.speed.prefill_seconds += SecondsSince(start);
    result_.speed.prefill_tokens += static_cast<int64_t>(tokens);
    return AddAll(beginnings, drawn);
  }

  absl::Status Step(const std::vector<NextToken>& next) {
    const int64_t start = SystemClock::Nanoseconds();
    WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> drawn, DrawAll(next, decoder_->Step(next)));
    result_.speed.decode_seconds += SecondsSince(start);
    result_.speed.decode_tokens += static_cast<int64_t>(next.size());
    ++result_.speed.decode_steps;
    return AddAll(next, drawn);
  }

  // A model may have more rows than the tokenizer has tokens; those stand for no text.
  absl::StatusOr<int32_t> DrawFor(Text& text, absl::Span<const float> logits) const {
    logits = logits.first(static_cast<size_t>(tokenizer_.vocab_size()));
    const auto wrong = std::find_if(logits.begin(), logits.end(),
                                    [](float logit) { return !std::isfinite(logit); });
    if (wrong == logits.end()) return Draw(logits, options_, text.random);
    return absl::FailedPreconditionError(
        absl::StrCat("text ", text.number + 1, ": after ", text.tokens.size() - 1,
                     " tokens the model's logit of token ", wrong - logits.begin(), " is ", *wrong,
                     "; its parameters are not finite, or its activations too large for ",
                     NameOf(PrecisionOf(model_.dtype())), " (precision; fp32 takes the largest)"));
  }

  absl::StatusOr<std::string> Decoded(const Text& text) const {
    const std::vector<int32_t> ids(text.tokens.begin() + 1, text.tokens.end());
    return tokenizer_.Decode(ids);
  }

  absl::Status Add(size_t slot, int32_t token) {
    Text& text = *slots_[slot];
    GeneratedText& result = result_.texts[text.number];
    result.ended_document = token == tokenizer_.eod_id();
    if (!result.ended_document) {
      text.tokens.push_back(token);
      result.tokens.push_back(token);
    }
    const bool is_done =
        result.ended_document || static_cast<int64_t>(result.tokens.size()) == options_.tokens;
    if (!is_done && on_part_ == nullptr) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(std::string decoded, Decoded(text));
    if (on_part_ != nullptr) {
      const absl::string_view whole =
          is_done ? absl::string_view(decoded) : WholeCharacters(decoded);
      if (whole.size() > text.given) {
        on_part_(text.number, whole.substr(text.given));
        text.given = whole.size();
      }
    }
    if (!is_done) return absl::OkStatus();
    result.text = std::move(decoded);
    slots_[slot].reset();
    return absl::OkStatus();
  }

  const Gpt& model_;
  const Tokenizer& tokenizer_;
  const absl::Span<const std::string> prompts_;
  const GenerateOptions& options_;
  const OnGenerated& on_part_;
  const int64_t context_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<std::vector<int64_t>> encoded_;
  size_t waiting_ = 0;  // the first text that has not begun
  std::vector<std::optional<Text>> slots_;
  Generated result_;
};

}  // namespace

absl::Status CheckGenerateOptions(const GenerateOptions& options) {
  if (options.tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens = ", options.tokens, ": at least 1 must be asked for"));
  }
  // Not a number compares with nothing.
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "temperature = ", options.temperature,
        ": 0 takes the likeliest token always, above 0 draws, 1 as the model predicts"));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k = ", options.top_k, ": a number of tokens, or 0 for all"));
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_p = ", options.top_p, ": a probability above 0, 1 for all tokens"));
  }
  if (options.batch < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch = ", options.batch, ": at least 1 text is written at a time"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Generated> Generate(const Gpt& model, const Tokenizer& tokenizer,
                                   absl::Span<const std::string> prompts,
                                   const GenerateOptions& options, const OnGenerated& on_part) {
  WEFT_RETURN_IF_ERROR(CheckGenerateOptions(options));
  WEFT_CHECK(tokenizer.vocab_size() <= model.config().vocabulary,
             "a tokenizer of " << tokenizer.vocab_size() << " tokens, a model of "
                               << model.config().vocabulary);
  return Writer(model, tokenizer, prompts, options, on_part).Run();
}

}  // namespace weft::train
