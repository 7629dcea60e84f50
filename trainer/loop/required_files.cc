#include "trainer/loop/required_files.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {

absl::Status RequiredFiles::Write(absl::string_view what,
                                  const std::function<absl::Status()>& write) {
  absl::Status agreed;
  WEFT_RETURN_IF_ERROR(world_.RunOnFirst(write, agreed));
  if (!agreed.ok()) AddMissing(absl::StrCat(what, ": ", agreed.message()));
  return absl::OkStatus();
}

}  // namespace weft::train
