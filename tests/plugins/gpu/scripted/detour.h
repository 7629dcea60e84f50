// Functions of a loaded library replaced by others, those too that the library exports nowhere:
// they are found by its symbol table, and a jump is written where they begin. x86-64 only. Not
// thread-safe: replace before the library is used.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_DETOUR_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_DETOUR_H_

#include <functional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::scripted {

class Detours {
 public:
  // `library`: a handle of dlopen. Not found when its file has no symbol table.
  static absl::StatusOr<Detours> Of(void* library);

  // The address of a function or an object, null when there is none of this name.
  void* Find(const std::string& name) const;
  // All functions whose names `chosen` accepts, with their addresses.
  const std::unordered_map<std::string, void*>& functions() const { return functions_; }

  static absl::Status Replace(void* function, const void* by);
  // From now on `function` calls `by(name)`; the name lives as long as the process.
  static absl::Status ReplaceByNamed(void* function, const char* name, int (*by)(const char*));

 private:
  std::unordered_map<std::string, void*> functions_, objects_;
};

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_DETOUR_H_
