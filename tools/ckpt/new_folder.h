// A folder that is there with all it holds, or not at all: written beside its place under a name of
// its own, then synced and renamed in one step.
//
//   WEFT_ASSIGN_OR_RETURN(auto folder, NewFolder::Create("models/demo"));
//   ... write files into folder->path(), "models/.demo.converting-Ab3dEf"
//   WEFT_RETURN_IF_ERROR(folder->Commit());
//
// SIGINT, SIGTERM and SIGHUP before Commit() kill the command of Run(), remove the folder of the
// other name, and end the process by the signal. A process that SIGKILL ends leaves that folder,
// which nobody reads.
#ifndef WEFT_TOOLS_CKPT_NEW_FOLDER_H_
#define WEFT_TOOLS_CKPT_NEW_FOLDER_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/command.h"

namespace weft::ckpt {

class NewFolder {
 public:
  // An empty folder is taken, also one that `target` is a link to. kAlreadyExists: `target` is a
  // file, or a folder that holds something; kNotFound: a link to nothing; kFailedPrecondition: the
  // root of a file system; kInvalidArgument: no name of a folder that can be made. Once in a
  // process, before it has other threads (tools/ending_signal.h).
  static absl::StatusOr<std::unique_ptr<NewFolder>> Create(std::string target);
  ~NewFolder();  // without Commit: removes what was written
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& path() const { return path_; }
  // RunCommand() for a program that writes into the folder.
  absl::StatusOr<CommandOutput> Run(const std::vector<std::string>& arguments,
                                    absl::Duration limit) {
    return unfinished_->command.Run(arguments, limit);
  }
  // Syncs all folders below; files must be synced already. kAlreadyExists when somebody else has
  // filled `target` since.
  absl::Status Commit();

 private:
  // What a signal undoes.
  struct Unfinished {
    std::mutex mutex;  // a signal takes it for good: afterwards nothing is committed or removed
    std::string path;  // empty: nothing is there, or it is committed
    CancellableCommand command;
  };

  NewFolder(std::string target, std::string path, std::shared_ptr<Unfinished> unfinished);

  const std::string target_;
  const std::string path_;
  const std::shared_ptr<Unfinished> unfinished_;
};

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_NEW_FOLDER_H_
