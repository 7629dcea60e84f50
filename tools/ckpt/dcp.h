// weft-ckpt convert: a checkpoint as one of torch.distributed.checkpoint, and back.
//
// The other format has every buffer as a tensor of the buffer's name and shape, optimizer states
// among them, and beside them what the manifest says of the run, as the bytes kManifestEntry. The
// files are written and read by PyTorch itself, in a Python that has it; between that program and
// this one goes a safetensors file.
#ifndef WEFT_TOOLS_CKPT_DCP_H_
#define WEFT_TOOLS_CKPT_DCP_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/ckpt/convert.h"
#include "tools/ckpt/new_folder.h"

namespace weft::ckpt {

// A U8 tensor: JSON with "step", "samples_consumed", "seed" and "states".
inline constexpr char kManifestEntry[] = "weft.manifest";

// Runs dcp_program.h with these words; it writes into `folder`.
absl::Status RunDcpProgram(NewFolder& folder, const std::string& python,
                           const std::vector<std::string>& arguments);

// Whether `python` is a program that has what the other calls need, before anything long is done
// for it: kNotFound names --python, kInternal has the program's own line. Takes seconds, since
// PyTorch loads.
absl::Status CheckDcpPython(NewFolder& folder, const std::string& python);

struct ToDcp {
  std::string checkpoint;
  std::string target;              // a folder that is not there, or empty
  std::string python = "python3";  // one that has PyTorch
};
absl::StatusOr<Converted> Convert(const ToDcp& options);

// `target` is a run's folder; the checkpoint in it has the step of the source and is resumed from
// like the one that the source was made of. kInvalidArgument: the source has no kManifestEntry.
// Nothing that the source's metadata, a pickle, asks for is run (dcp_program.h).
struct FromDcp {
  std::string source;
  std::string target;
  std::string python = "python3";
};
absl::StatusOr<Converted> Convert(const FromDcp& options);

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_DCP_H_
