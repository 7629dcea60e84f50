// One job at a time in a folder, on whatever hosts: a file "lock" in it names the job that has it.
//
// Two means, because neither is enough. An open-file-description lock (fcntl) on the file: the
// kernel releases it when the process ends, however it ends; but where a network file system has no
// lock service, it holds between the processes of one host only. And a beat: the holder touches the
// file every two seconds. A job that gets the kernel's lock and finds the name of a holder
//   of this host, since this boot   takes the folder at once: the kernel says that the holder died;
//   of another host                 watches the file for 15 s, and takes the folder if it was not
//                                   touched meanwhile. Without kernel locks, so for every holder.
//
// Where the lock holds on one host only, two jobs on two hosts that find the file unheld in the
// same moment both take it, and so does a job whose holder was suspended for longer than the watch:
// the last one wins, Check tells the other.
//
// The file stays, empty, when the folder is released: to remove a lock file is a race of its own.
#ifndef WEFT_TRAINER_FILES_FOLDER_LOCK_H_
#define WEFT_TRAINER_FILES_FOLDER_LOCK_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace weft::train {

class FolderLock {
 public:
  struct Options {
    absl::Duration beat = absl::Seconds(2);
    absl::Duration watch = absl::Seconds(15);  // several beats; blocks Take for so long at most
    std::string boot;  // of which boot of which host this process is; empty: this one
  };

  // Creates the folder when it is missing. AlreadyExists names the holder: host, process, since
  // when. Until it succeeds, nothing in the folder has changed but that "lock" exists.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Take(const std::string& folder,
                                                          const Options& options);
  static absl::StatusOr<std::unique_ptr<FolderLock>> Take(const std::string& folder) {
    return Take(folder, Options());
  }
  ~FolderLock();  // releases it
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Aborted, with the new holder's name, when another job has taken the folder. Thread-safe.
  absl::Status Check() const;

 private:
  FolderLock(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  absl::Status Acquire(const Options& options);
  absl::Status AwaitSilence(const Options& options) const;
  absl::Status Sign(const std::string& boot);
  void Beat(absl::Duration beat);

  const std::string path_;
  const int descriptor_;
  std::string signature_;  // what the file holds while this job has the folder; empty: not taken
  absl::Notification released_;
  std::thread beater_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_FILES_FOLDER_LOCK_H_
