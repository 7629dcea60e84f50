// weft-ckpt convert --from dcp with a config, and --to dcp --names huggingface: checkpoints that
// programs in PyTorch write and read with torch.distributed.checkpoint, as of FSDP2 or DTensor,
// whose tensors have the names of a Hugging Face model.
//
// What get_state_dict gives, saved as {"model": ..., "optim": ...}: PREFIX + NAME is a parameter,
// PREFIX + NAME + ".exp_avg", ".exp_avg_sq" and ".step" are the states that Adam or AdamW has of
// it. Prefixes ("model.", "optim.state.", "module.") are found by the first parameter's name, and
// may be empty. Anything else, as hyperparameters, is left alone.
#ifndef WEFT_TOOLS_CKPT_MODEL_DCP_H_
#define WEFT_TOOLS_CKPT_MODEL_DCP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/ckpt/convert.h"
#include "tools/ckpt/dcp.h"
#include "trainer/config.h"

namespace weft::ckpt {

struct ToModelDcp : ToDcp {};
absl::StatusOr<Converted> Convert(const ToModelDcp& options);

struct FromModelDcp : FromDcp {
  // What the run will have: its model must be the source's, as of FromHuggingFace.
  train::TrainConfig config;
};
// With the states of Adam where the source has them and optimizer.name is adamw: the run then goes
// on after their step, `*step`; else at 0, with states of zero.
absl::StatusOr<Converted> Convert(const FromModelDcp& options, int64_t* step);

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_MODEL_DCP_H_
