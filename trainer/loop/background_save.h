// Saves a run's state under its next steps: a thread copies it into memory of its own, which takes
// the time of the next step's passes, and then writes the copy.
//
// All ranks call Begin and Finish together and get the same outcome. Used by one thread.
#ifndef WEFT_TRAINER_LOOP_BACKGROUND_SAVE_H_
#define WEFT_TRAINER_LOOP_BACKGROUND_SAVE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "trainer/checkpoint/save_times.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/groups/group.h"
#include "trainer/loop/saved_state.h"
#include "trainer/parallel/parameter_sets.h"

namespace weft::train {

// A background save that has ended.
struct SavedInBackground {
  int64_t step = -1;     // -1: none has ended
  absl::Status failure;  // why there is no new checkpoint
};

class BackgroundSave {
 public:
  // Writes `parts`, on the thread in the background. Returns an error when the group fails;
  // `failure`, OK before, is why there is no new checkpoint. `optimizer`: its name.
  using Write =
      std::function<absl::Status(const RunPosition& position, const std::string& optimizer,
                                 const std::vector<BufferPart>& parts, absl::Status& failure)>;

  // `before_copy` (may be null) is called in the background before each copy: for tests. `times`
  // and what `write` uses outlive this object; its end waits for what is under way.
  BackgroundSave(Write write, std::function<void()> before_copy, SaveTimes& times)
      : write_(std::move(write)), before_copy_(std::move(before_copy)), times_(times) {}

  // Begins to copy the state after `position`, and then to write it. `began` is false, on all ranks
  // of `group`, where the one before is not yet written. Until FinishCopy, nobody may change the
  // state. The memory is allocated once. `saved` is the one before; an error is that of its group.
  absl::Status Begin(const RunPosition& position, const ParameterSets& parameters, Group& group,
                     bool& began, SavedInBackground& saved);
  // Waits until the state is copied; why it could not be.
  absl::Status FinishCopy();
  // Waits until what Begin began is written: `saved`. An error is that of the copy or of the group.
  absl::Status Finish(SavedInBackground& saved);

  size_t pool_bytes() const { return pool_.size(); }

 private:
  const Write write_;
  const std::function<void()> before_copy_;
  SaveTimes& times_;
  std::vector<std::byte> pool_;  // of the state that is written
  SavedInBackground under_way_;
  std::future<absl::Status> copied_;
  std::future<absl::Status> saving_;  // last: it is waited for before the rest goes
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_BACKGROUND_SAVE_H_
