#include "trainer/model/attention_libraries.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trainer/model/product.h"

namespace weft::train {
namespace {

std::optional<KernelLibrary> AttentionLibraryNamed(absl::string_view name) {
  const std::optional<KernelLibrary> library = LibraryNamed(name);
  return library == KernelLibrary::kOneDnn ? std::nullopt : library;
}

}  // namespace

KernelLibrary AttentionLibraries::Of(int64_t window) const {
  const auto other = others_.find(window);
  return other == others_.end() ? all_ : other->second;
}

void AttentionLibraries::Set(int64_t window, KernelLibrary library) {
  others_.erase(window);
  if (library != all_) others_.emplace(window, library);
}

std::string AttentionLibraries::ToText() const {
  std::string text(NameOf(all_));
  for (const auto& [window, library] : others_) {
    absl::StrAppend(&text, ",", NameOf(library), "=window.", window);
  }
  return text;
}

std::optional<AttentionLibraries> AttentionLibraries::FromText(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ',');
  // A null view has no words.
  const auto all = AttentionLibraryNamed(words.empty() ? "" : words[0]);
  if (!all) return std::nullopt;
  AttentionLibraries libraries(*all);
  for (size_t i = 1; i < words.size(); ++i) {
    std::pair<absl::string_view, absl::string_view> word =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const auto library = AttentionLibraryNamed(word.first);
    int64_t window = 0;
    if (!library || !absl::ConsumePrefix(&word.second, "window.") ||
        !absl::SimpleAtoi(word.second, &window) || window < 0) {
      return std::nullopt;
    }
    libraries.Set(window, *library);
  }
  return libraries;
}

}  // namespace weft::train
