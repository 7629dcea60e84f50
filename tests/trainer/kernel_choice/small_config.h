// The model of the trials that tests make: small, so that each product takes microseconds.
#ifndef WEFT_TESTS_TRAINER_KERNEL_CHOICE_SMALL_CONFIG_H_
#define WEFT_TESTS_TRAINER_KERNEL_CHOICE_SMALL_CONFIG_H_

#include "trainer/config.h"

namespace weft::train {

inline TrainConfig SmallConfig() {
  TrainConfig config;
  config.model.hidden = 32;
  config.model.ffn = 48;
  config.model.heads = 4;
  config.model.layers = 2;
  config.model.sequence = 24;
  config.model.vocabulary = 100;
  config.global_batch = 2;
  config.pipeline_stages = "auto";
  return config;
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_KERNEL_CHOICE_SMALL_CONFIG_H_
