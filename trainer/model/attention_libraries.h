// What computes attention in each layer: a library, and others for some windows.
#ifndef WEFT_TRAINER_MODEL_ATTENTION_LIBRARIES_H_
#define WEFT_TRAINER_MODEL_ATTENTION_LIBRARIES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "trainer/config.h"

namespace weft::train {

class AttentionLibraries {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): one library for all is the usual case
  AttentionLibraries(KernelLibrary all = KernelLibrary::kAten) : all_(all) {}

  // `window` as ModelConfig::WindowOf has it; 0: none.
  KernelLibrary Of(int64_t window) const;
  void Set(int64_t window, KernelLibrary library);

  // "weft", or "weft,aten=window.128".
  std::string ToText() const;
  // None where `text` is none of these.
  static std::optional<AttentionLibraries> FromText(absl::string_view text);

 private:
  KernelLibrary all_;
  std::map<int64_t, KernelLibrary> others_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_ATTENTION_LIBRARIES_H_
