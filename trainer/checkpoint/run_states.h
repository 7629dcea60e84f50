// What weft-train keeps in the states of a checkpoint's manifest (Manifest::states), by name, and
// how its buffers are named.
#ifndef WEFT_TRAINER_CHECKPOINT_RUN_STATES_H_
#define WEFT_TRAINER_CHECKPOINT_RUN_STATES_H_

namespace weft::train {

inline constexpr char kIdentityState[] = "identity";    // ResumeIdentity(config)
inline constexpr char kOptimizerState[] = "optimizer";  // its name; absent: adamw
inline constexpr char kLossScaleState[] = "loss_scale";
inline constexpr char kGemmState[] = "gemm";               // GemmLibraries::ToText
inline constexpr char kAttentionState[] = "attention";     // AttentionLibraries::ToText
inline constexpr char kCoreChoiceState[] = "core_choice";  // CoreChoiceToWord
// A checkpoint that holds parameters alone, as of another program: any optimizer begins anew.
inline constexpr char kNoOptimizer[] = "none";

// "parameters.block.0.norm1.weight"
inline constexpr char kParameterPrefix[] = "parameters.";

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_RUN_STATES_H_
