#include "trainer/data/made_up_text.h"

#include <array>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "trainer/data/prepare.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

constexpr auto kThings =
    std::to_array<const char*>({"horse",  "river",  "lamp",  "field",  "ship",   "song",   "tower",
                                "garden", "letter", "stone", "market", "mirror", "bridge", "winter",
                                "thread", "loom",   "cloud", "island", "engine", "road"});
constexpr auto kVerbs =
    std::to_array<const char*>({"carries", "sees", "follows", "keeps", "makes", "finds", "leaves",
                                "remembers", "turns", "weaves"});
constexpr auto kKinds = std::to_array<const char*>(
    {"old", "green", "quiet", "long", "heavy", "bright", "small", "distant"});

constexpr int kDocuments = 6000;
constexpr int32_t kVocabulary = 512;

template <size_t kCount>
const char* Draw(const std::array<const char*, kCount>& words, Random& random) {
  return words[random.Below(kCount)];
}

std::string Sentences() {
  Random random(1);
  std::string text;
  for (int document = 0; document < kDocuments; ++document) {
    const char* const subject = Draw(kThings, random);  // of all sentences of a document
    for (int sentence = 0; sentence < 6; ++sentence) {
      absl::StrAppend(&text, "The ", Draw(kKinds, random), " ", subject, " ", Draw(kVerbs, random),
                      " the ", Draw(kThings, random), " of ", random.Below(100), " ",
                      Draw(kThings, random), "s. ");
    }
    text += "\n\n";
  }
  return text;
}

}  // namespace

absl::Status PrepareMadeUpText(const std::string& prefix) {
  std::error_code error;
  if (std::filesystem::exists(prefix + ".json", error)) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(MakeFolders(std::filesystem::path(prefix).parent_path().string()));
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(prefix + ".txt", Sentences()));
  PrepareOptions options;
  options.inputs = {prefix + ".txt"};
  options.output_prefix = prefix;
  options.vocab_size = kVocabulary;
  options.validation_fraction = 0.05;
  return PrepareDataset(options).status();
}

}  // namespace weft::train
