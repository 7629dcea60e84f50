// A folder that is there with all it holds, or not at all: written beside its place under a name of
// its own, then synced and renamed in one step.
//
//   WEFT_ASSIGN_OR_RETURN(auto folder, NewFolder::Create("models/demo"));
//   ... write files into folder->path(), "models/.demo.converting-Ab3dEf"
//   WEFT_RETURN_IF_ERROR(folder->Commit());
//
// A process that is killed before Commit() leaves the folder of the other name, which nobody reads.
#ifndef WEFT_TOOLS_CKPT_NEW_FOLDER_H_
#define WEFT_TOOLS_CKPT_NEW_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::ckpt {

class NewFolder {
 public:
  // kAlreadyExists: `target` is a file, or a folder that holds something.
  static absl::StatusOr<std::unique_ptr<NewFolder>> Create(std::string target);
  ~NewFolder();  // without Commit: removes what was written
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& path() const { return path_; }
  // Syncs all folders below; files must be synced already. kAlreadyExists when somebody else has
  // filled `target` since.
  absl::Status Commit();

 private:
  NewFolder(std::string target, std::string path);

  const std::string target_;
  const std::string path_;
  bool committed_ = false;
};

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_NEW_FOLDER_H_
