// A run's numbers as an event file that TensorBoard reads: RUN/tensorboard/events.out.tfevents.*
//
// Format: records of a length, the length's masked CRC-32C, an Event message, its masked CRC-32C
// (tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto). Each resumed run has
// a file of its own; TensorBoard joins them by step.
#ifndef WEFT_TRAINER_LOOP_TENSORBOARD_H_
#define WEFT_TRAINER_LOOP_TENSORBOARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace weft::train {

class TensorBoardLog {
 public:
  static absl::StatusOr<std::unique_ptr<TensorBoardLog>> Open(const std::string& folder,
                                                              absl::Time now);
  ~TensorBoardLog();
  // With the kernel at once. After an error the file is as it was, or ends in a part of a record,
  // which readers skip.
  absl::Status Append(int64_t step, absl::Time now,
                      absl::Span<const std::pair<const char*, double>> values);
  const std::string& path() const { return path_; }

 private:
  TensorBoardLog(std::string path, int file) : path_(std::move(path)), file_(file) {}
  absl::Status Write(const std::string& event);

  const std::string path_;
  const int file_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_TENSORBOARD_H_
