// GemmLibraries of product.h.
#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trainer/model/product.h"

namespace weft::train {
namespace {

constexpr std::array<std::pair<absl::string_view, GemmPass>, 3> kPasses = {
    std::pair("forward", GemmPass::kForward), std::pair("input", GemmPass::kInputGradient),
    std::pair("weight", GemmPass::kWeightGradient)};

}  // namespace

absl::string_view NameOf(KernelLibrary library) {
  switch (library) {
    case KernelLibrary::kWeft:
      return "weft";
    case KernelLibrary::kOneDnn:
      return "onednn";
    case KernelLibrary::kAuto:
    case KernelLibrary::kAten:
      break;
  }
  return "aten";
}

std::optional<KernelLibrary> LibraryNamed(absl::string_view name) {
  for (KernelLibrary library :
       {KernelLibrary::kAten, KernelLibrary::kWeft, KernelLibrary::kOneDnn}) {
    if (name == NameOf(library)) return library;
  }
  return std::nullopt;
}

std::string ToString(const GemmShape& shape) {
  return absl::StrCat(kPasses[static_cast<size_t>(shape.pass)].first, ".", shape.inputs, "x",
                      shape.outputs);
}

std::optional<GemmShape> GemmShapeFrom(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::ByAnyChar(".x"));
  GemmShape shape;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &shape.inputs) ||
      !absl::SimpleAtoi(parts[2], &shape.outputs)) {
    return std::nullopt;
  }
  for (const auto& [name, pass] : kPasses) {
    if (parts[0] != name) continue;
    shape.pass = pass;
    return shape;
  }
  return std::nullopt;
}

KernelLibrary GemmLibraries::Of(const GemmShape& shape) const {
  for (const auto& [other, library] : others_) {
    if (other == shape) return library;
  }
  return all_;
}

void GemmLibraries::Set(const GemmShape& shape, KernelLibrary library) {
  others_.erase(std::remove_if(others_.begin(), others_.end(),
                               [&shape](const auto& each) { return each.first == shape; }),
                others_.end());
  if (library != all_) others_.emplace_back(shape, library);
}

int GemmLibraries::CountOf(KernelLibrary library) const {
  return static_cast<int>(
      std::count_if(others_.begin(), others_.end(),
                    [library](const auto& each) { return each.second == library; }));
}

std::string GemmLibraries::ToText() const {
  std::string text(NameOf(all_));
  for (const auto& [shape, library] : others_) {
    absl::StrAppend(&text, ",", NameOf(library), "=", ToString(shape));
  }
  return text;
}

std::optional<GemmLibraries> GemmLibraries::FromText(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ',');
  // A null view has no words.
  const std::optional<KernelLibrary> all = LibraryNamed(words.empty() ? "" : words[0]);
  if (!all) return std::nullopt;
  GemmLibraries libraries(*all);
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> word =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const std::optional<KernelLibrary> library = LibraryNamed(word.first);
    const std::optional<GemmShape> shape = GemmShapeFrom(word.second);
    if (!library || !shape) return std::nullopt;
    libraries.Set(*shape, *library);
  }
  return libraries;
}

}  // namespace weft::train
