// Where the parameters of a model are in its list (parameters.h), by their names.
#ifndef WEFT_TRAINER_MODEL_PARAMETER_NUMBERS_H_
#define WEFT_TRAINER_MODEL_PARAMETER_NUMBERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/model/parameters.h"

namespace weft::train {

// Numbers of a linear layer's or norm's parameters; -1: none.
struct ParameterPair {
  int weight = -1;
  int bias = -1;
};

struct Expert {
  ParameterPair in, out;
};

// The numbers of one block's parameters; what the list does not have is -1 or empty.
struct BlockParameters {
  ParameterPair norm1, norm2;
  // One projection that makes queries, keys and values together; or two, the first of which makes
  // queries, and the second keys and values.
  std::vector<ParameterPair> projections;
  ParameterPair attention_out, ffn_in, ffn_out;
  int router = -1;  // -1: no experts
  std::vector<Expert> experts;
};

// Const use is thread-safe.
class ParameterNumbers {
 public:
  explicit ParameterNumbers(const std::vector<ParameterSpec>& specs);

  int Find(const std::string& name) const;                // -1: there is none
  ParameterPair FindPair(const std::string& name) const;  // NAME.weight and NAME.bias
  // The block of `layer`; where it has a router, with `experts` experts from `first_expert` on.
  BlockParameters OfBlock(int64_t layer, int64_t first_expert, int64_t experts) const;

 private:
  std::map<std::string, int> numbers_;  // by name
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_PARAMETER_NUMBERS_H_
