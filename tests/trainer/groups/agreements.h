// Jobs whose ranks are threads of this process, for tests of what the ranks agree upon.
#ifndef WEFT_TESTS_TRAINER_GROUPS_AGREEMENTS_H_
#define WEFT_TESTS_TRAINER_GROUPS_AGREEMENTS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "collectives/communicator.h"
#include "collectives/endpoint.h"
#include "tests/collectives/job.h"
#include "trainer/groups/agreement.h"

namespace weft::train {

using EndpointPtr = std::shared_ptr<collectives::Endpoint>;

// A job of `ranks`; `body` gets the agreement of all of them on each.
inline void RunAgreements(int ranks, const collectives::SettingPairs& settings,
                          const std::function<void(Agreement&, const EndpointPtr&)>& body) {
  collectives::RunRanks(ranks, settings, [&](const EndpointPtr& endpoint) {
    const auto communicator =
        collectives::Communicator::Create(endpoint, "test", collectives::AllRanks(ranks));
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    Agreement world(communicator->get(), collectives::AllRanks(ranks), ranks);
    body(world, endpoint);
  });
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_GROUPS_AGREEMENTS_H_
