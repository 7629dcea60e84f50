// weft-data: plain text to training data, and a look into it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/units.h"
#include "tools/command_line.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/indexed_dataset.h"
#include "trainer/data/prepare.h"
#include "trainer/data/tokenizer.h"

namespace weft::train {
namespace {

// One line on stderr: redrawn on a terminal, else a new one every few seconds.
class ProgressLine {
 public:
  void Update(absl::string_view phase, double fraction) {
    absl::Time now = SystemClock().Now();
    bool new_phase = phase != phase_;
    if (!new_phase && now - last_ < (terminal_ ? absl::Milliseconds(100) : absl::Seconds(3))) {
      return;
    }
    phase_ = std::string(phase);
    last_ = now;
    std::string bar;
    if (fraction >= 0) {
      int done = static_cast<int>(fraction * 30);
      if (terminal_)
        bar = absl::StrCat(" [", std::string(done, '='), std::string(30 - done, ' '), "]");
      absl::StrAppendFormat(&bar, " %3.0f%%", fraction * 100);
    }
    std::string seconds = absl::StrFormat("%5.1f s", absl::ToDoubleSeconds(now - start_));
    absl::FPrintF(stderr, "%s%s  %s%s%s", terminal_ ? "\r\x1b[K" : "", seconds, phase_, bar,
                  terminal_ ? "" : "\n");
    std::fflush(stderr);
  }
  void Finish() {
    if (terminal_ && !phase_.empty()) absl::FPrintF(stderr, "\r\x1b[K");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const absl::Time start_ = SystemClock().Now();
  absl::Time last_ = absl::InfinitePast();
  std::string phase_;
};

struct PrepareCommand {
  PrepareOptions options;
  std::string split = "blank-lines";
  std::string cleaner = "none";
  std::string text_most = "4GiB";
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("--input", options.inputs, "text files, UTF-8; gzip (.gz, .dz) is unpacked")
        ->required()
        ->check(CLI::ExistingFile);
    app.add_option(
           "--output-prefix", options.output_prefix,
           "writes PREFIX_train.{bin,idx}, PREFIX_valid.{bin,idx}, PREFIX.model, PREFIX.json")
        ->required();
    app.add_option("--vocab-size", options.vocab_size, "tokens of the tokenizer that is learnt")
        ->check(CLI::Range(1, kVocabularyMost))
        ->capture_default_str();
    app.add_option("--tokenizer", options.tokenizer,
                   "an existing SentencePiece model, instead of learning one")
        ->check(CLI::ExistingFile);
    app.add_option("--validation-fraction", options.validation_fraction,
                   "part of the documents that is held out, 0..1")
        ->check(RealRange(0, 1))
        ->capture_default_str();
    app.add_option("--seed", options.seed,
                   "draws the held-out documents and the tokenizer's sample")
        ->capture_default_str();
    app.add_option("--threads", options.threads, "encoding threads; 0: one a core")
        ->check(CLI::Range(0, 4096))
        ->capture_default_str();
    app.add_option("--text-most", text_most,
                   "bytes of one input, unpacked, at most; an input must fit into memory twice")
        ->capture_default_str();
    app.add_option("--split", split, "what a document is: blank-lines, lines, file")
        ->check(CLI::IsMember({"blank-lines", "lines", "file"}))
        ->capture_default_str();
    app.add_option("--cleaner", cleaner,
                   "none; gcide: dictd's GCIDE dictionary, a document an entry")
        ->check(CLI::IsMember({"none", "gcide"}))
        ->capture_default_str();
    app.add_flag("--json", json, "print the description as JSON");
  }

  absl::Status Resolve() {
    WEFT_ASSIGN_OR_RETURN(options.split, ParseDocumentSplit(split));
    WEFT_ASSIGN_OR_RETURN(options.cleaner, ParseTextCleaner(cleaner));
    const absl::StatusOr<Bytes> most = ParseBytes(text_most);
    if (!most.ok()) return Annotate(most.status(), "--text-most");
    options.text_most = *most;
    return absl::OkStatus();
  }

  absl::Status Run() const {
    ProgressLine line;
    auto prepared = PrepareDataset(
        options, [&line](absl::string_view phase, double part) { line.Update(phase, part); });
    line.Finish();
    if (!prepared.ok()) return prepared.status();
    const DatasetInfo& info = *prepared;
    if (json) {
      nlohmann::ordered_json row = {{"output_prefix", options.output_prefix},
                                    {"vocab_size", info.vocab_size},
                                    {"train_documents", info.train_documents},
                                    {"train_tokens", info.train_tokens},
                                    {"validation_documents", info.validation_documents},
                                    {"validation_tokens", info.validation_tokens},
                                    {"unigram_loss", info.unigram_loss},
                                    {"invalid_utf8", info.invalid_utf8}};
      std::cout << JsonText(row) << "\n";
      return absl::OkStatus();
    }
    absl::PrintF("training    %10d tokens in %d documents: %s_train.{bin,idx}\n", info.train_tokens,
                 info.train_documents, options.output_prefix);
    absl::PrintF("validation  %10d tokens in %d documents: %s_valid.{bin,idx}\n",
                 info.validation_tokens, info.validation_documents, options.output_prefix);
    absl::PrintF("tokenizer   %10d tokens: %s\n", info.vocab_size, info.tokenizer);
    absl::PrintF("unigram loss %9.4f nats a token (what counting tokens alone reaches)\n",
                 info.unigram_loss);
    if (info.invalid_utf8 > 0) {
      absl::PrintF("%d pieces of invalid UTF-8 were replaced\n", info.invalid_utf8);
    }
    return absl::OkStatus();
  }
};

struct InspectCommand {
  std::string prefix;
  std::string tokenizer;
  int documents = 3;
  bool check = false;
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("prefix", prefix, "prefix of a .bin/.idx pair")->required();
    app.add_option("--tokenizer", tokenizer, "model to decode with (default: the dataset's own)");
    app.add_option("--documents", documents, "how many of the first documents to show")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    app.add_flag("--check", check, "read every token and see whether it is in the vocabulary");
    app.add_flag("--json", json, "one JSON object");
  }

  // What weft-data prepare noted beside the dataset; nothing when it did not make it.
  absl::StatusOr<std::optional<DatasetInfo>> FindInfo() const {
    for (absl::string_view part : {"_train", "_valid"}) {
      if (!absl::EndsWith(prefix, part)) continue;
      auto info = ReadDatasetInfo(prefix.substr(0, prefix.size() - part.size()));
      if (absl::IsNotFound(info.status())) break;
      if (!info.ok()) return info.status();
      return *std::move(info);
    }
    return std::nullopt;
  }

  absl::Status CheckAll(const IndexedDataset& data) const {
    std::vector<int32_t> tokens;
    for (int64_t s = 0; s < data.sequences(); ++s) {
      tokens.resize(static_cast<size_t>(data.SequenceLength(s)));
      WEFT_RETURN_IF_ERROR(data.Read(s, 0, absl::MakeSpan(tokens)));
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    WEFT_ASSIGN_OR_RETURN(std::optional<DatasetInfo> info, FindInfo());
    const std::string model = !tokenizer.empty() || !info.has_value() ? tokenizer : info->tokenizer;
    WEFT_ASSIGN_OR_RETURN(IndexedDataset data,
                          IndexedDataset::Open(prefix, info ? info->vocab_size : kAnyVocabulary));
    if (check) WEFT_RETURN_IF_ERROR(CheckAll(data));
    std::vector<std::vector<int32_t>> shown;
    for (int64_t d = 0; d < std::min<int64_t>(documents, data.documents()); ++d) {
      std::vector<int32_t>& tokens = shown.emplace_back();
      for (int64_t s = data.FirstSequence(d); s < data.LastSequence(d); ++s) {
        size_t before = tokens.size();
        tokens.resize(before + static_cast<size_t>(data.SequenceLength(s)));
        WEFT_RETURN_IF_ERROR(data.Read(s, 0, absl::MakeSpan(tokens).subspan(before)));
      }
    }
    std::vector<std::string> texts;
    if (!model.empty()) {
      WEFT_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(model));
      for (const auto& tokens : shown) {
        WEFT_ASSIGN_OR_RETURN(std::string text, loaded.Decode(tokens));
        texts.push_back(std::move(text));
      }
    }
    json ? PrintJson(data, shown, texts) : PrintTable(data, shown, texts);
    return absl::OkStatus();
  }

  void PrintJson(const IndexedDataset& data, const std::vector<std::vector<int32_t>>& shown,
                 const std::vector<std::string>& texts) const {
    nlohmann::ordered_json row = {{"prefix", prefix},
                                  {"token_type", std::string(NameOf(data.token_type()))},
                                  {"documents", data.documents()},
                                  {"sequences", data.sequences()},
                                  {"tokens", data.tokens()},
                                  {"modes", data.has_modes()},
                                  {"first_documents", shown},
                                  {"first_texts", texts}};
    std::cout << JsonText(row) << "\n";
  }

  void PrintTable(const IndexedDataset& data, const std::vector<std::vector<int32_t>>& shown,
                  const std::vector<std::string>& texts) const {
    absl::PrintF(
        "prefix      %s\ntoken type  %s\ndocuments   %d\nsequences   %d%s\ntokens      %d\n",
        prefix, NameOf(data.token_type()), data.documents(), data.sequences(),
        data.has_modes() ? " (with modes)" : "", data.tokens());
    constexpr size_t kTokensShown = 24;
    for (size_t d = 0; d < shown.size(); ++d) {
      absl::PrintF("\ndocument %d, %d tokens:", d, shown[d].size());
      for (size_t i = 0; i < std::min(shown[d].size(), kTokensShown); ++i) {
        absl::PrintF(" %d", shown[d][i]);
      }
      absl::PrintF("%s\n", shown[d].size() > kTokensShown ? " ..." : "");
      if (!texts.empty()) absl::PrintF("%s", texts[d]);
    }
  }
};

// encode: text on stdin to token numbers, a line of input a line of output. decode: the way back.
struct CodecCommand {
  std::string tokenizer;

  void Register(CLI::App& app) {
    app.add_option("--tokenizer", tokenizer, "a SentencePiece model")
        ->required()
        ->check(CLI::ExistingFile);
  }

  // What ended the reading of standard input; std::cin takes an error for the end.
  static absl::Status InputEnded() {
    return std::ferror(stdin) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "read standard input");
  }

  absl::Status Encode() {
    WEFT_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(tokenizer));
    std::vector<int32_t> ids;
    for (std::string line; std::getline(std::cin, line);) {
      ReplaceInvalidUtf8(line);
      WEFT_RETURN_IF_ERROR(loaded.Encode(line, ids));
      std::cout << absl::StrJoin(ids, " ") << "\n";
    }
    return InputEnded();
  }

  absl::Status Decode() {
    WEFT_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(tokenizer));
    for (std::string line; std::getline(std::cin, line);) {
      std::vector<int32_t> ids;
      for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipWhitespace())) {
        int32_t id = 0;
        if (!absl::SimpleAtoi(word, &id)) {
          return absl::InvalidArgumentError(
              absl::StrCat("'", word, "' is no token number; numbers between spaces are right"));
        }
        ids.push_back(id);
      }
      WEFT_ASSIGN_OR_RETURN(std::string text, loaded.Decode(ids));
      std::cout << text << "\n";
    }
    return InputEnded();
  }
};

int Main(int argc, char** argv) {
  CLI::App app{
      "Turns plain text into training data (Megatron's .bin/.idx with a SentencePiece tokenizer) "
      "and "
      "looks into it.\nExample: weft-data prepare --input book.txt.gz --output-prefix data/book",
      "weft-data"};
  app.require_subcommand(1);
  PrepareCommand prepare;
  InspectCommand inspect;
  CodecCommand codec;
  CLI::App* prepare_app = app.add_subcommand("prepare", "text files to a training set");
  CLI::App* inspect_app = app.add_subcommand("inspect", "what a .bin/.idx pair holds");
  CLI::App* encode_app = app.add_subcommand("encode", "text on stdin to token numbers, by lines");
  CLI::App* decode_app = app.add_subcommand("decode", "token numbers on stdin to text, by lines");
  prepare.Register(*prepare_app);
  inspect.Register(*inspect_app);
  codec.Register(*encode_app);
  codec.Register(*decode_app);
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&] {
    return prepare_app->parsed() ? prepare.Resolve() : absl::OkStatus();
  });
  if (status_of_usage != kGoOn) return status_of_usage;

  absl::Status status = prepare_app->parsed()   ? prepare.Run()
                        : inspect_app->parsed() ? inspect.Run()
                        : encode_app->parsed()  ? codec.Encode()
                                                : codec.Decode();
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "weft-data: %s\n", status.message());
  return 1;
}

}  // namespace
}  // namespace weft::train

int main(int argc, char** argv) { return weft::train::Main(argc, argv); }
