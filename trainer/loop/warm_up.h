// What takes time before a rank's first step and needs no rank's place: done by a spare process
// while it waits (collectives/rendezvous/warm_process.h), so that a rank that is started anew need
// not.
#ifndef WEFT_TRAINER_LOOP_WARM_UP_H_
#define WEFT_TRAINER_LOOP_WARM_UP_H_

#include "absl/status/status.h"
#include "trainer/config.h"
#include "trainer/loop/run_data.h"

namespace weft::train {

// Maps and opens the run's data, reads its first sample, which makes the order of an epoch, starts
// the compute threads, and takes one layer of the run's model forward and backward over one sample,
// by each library there is: what they set up on their first call, and the memory, stay. An error
// costs that warmth only: the run itself will say what is wrong.
absl::Status WarmUp(const TrainConfig& config, int threads, RunData& data);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_WARM_UP_H_
