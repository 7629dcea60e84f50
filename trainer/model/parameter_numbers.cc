#include "trainer/model/parameter_numbers.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace weft::train {

ParameterNumbers::ParameterNumbers(const std::vector<ParameterSpec>& specs) {
  for (size_t i = 0; i < specs.size(); ++i) numbers_.emplace(specs[i].name, static_cast<int>(i));
}

int ParameterNumbers::Find(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? -1 : found->second;
}

ParameterPair ParameterNumbers::FindPair(const std::string& name) const {
  return {Find(name + ".weight"), Find(name + ".bias")};
}

BlockParameters ParameterNumbers::OfBlock(int64_t layer, int64_t first_expert,
                                          int64_t experts) const {
  const std::string name = absl::StrCat("block.", layer);
  BlockParameters block;
  block.norm1 = FindPair(name + ".norm1");
  block.norm2 = FindPair(name + ".norm2");
  block.projections = {FindPair(name + ".attention.qkv")};
  if (block.projections[0].weight < 0) {
    block.projections = {FindPair(name + ".attention.q"), FindPair(name + ".attention.kv")};
  }
  block.attention_out = FindPair(name + ".attention.out");
  block.ffn_in = FindPair(name + ".ffn.in");
  block.ffn_out = FindPair(name + ".ffn.out");
  block.router = Find(name + ".router.weight");
  if (block.router < 0) return block;
  for (int64_t i = first_expert; i < first_expert + experts; ++i) {
    const std::string expert = absl::StrCat(name, ".expert.", i);
    block.experts.push_back({FindPair(expert + ".in"), FindPair(expert + ".out")});
  }
  return block;
}

}  // namespace weft::train
