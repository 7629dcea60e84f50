// Weft's shared libraries that are loaded only where they are needed, so that the other libraries
// do not depend on what these link (CUDA, UCX).
#ifndef WEFT_BASE_MODULE_H_
#define WEFT_BASE_MODULE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// Loads `name` ("libweft-ucx.so"): from `path` if that is not empty, else from ../lib, ../../lib or
// the folder itself beside the program or library that this code is part of, else where the dynamic
// linker looks. It stays loaded. The handle is dlopen's. Errors: kUnavailable with the linker's
// reasons, and `hint`. Thread-safe.
absl::StatusOr<void*> LoadModule(absl::string_view name, absl::string_view hint,
                                 absl::string_view path = "");

}  // namespace weft

#endif  // WEFT_BASE_MODULE_H_
