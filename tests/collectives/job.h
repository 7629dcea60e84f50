// A job whose ranks are threads of one process, each with its own endpoint.
#ifndef WEFT_TESTS_COLLECTIVES_JOB_H_
#define WEFT_TESTS_COLLECTIVES_JOB_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"
#include "tests/collectives/memory_store.h"

namespace weft::collectives {

using SettingPairs = std::vector<std::string>;  // "name=value"

inline Settings SettingsOf(const SettingPairs& pairs) {
  Settings settings(LibrarySettings());
  for (const std::string& pair : pairs) {
    absl::Status status = settings.SetPair(pair, "test");
    EXPECT_TRUE(status.ok()) << status;
  }
  return settings;
}

inline std::vector<Rank> AllRanks(int size) {
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) ranks.emplace_back(r);
  return ranks;
}

// Runs `body` once a rank, each on a thread of its own, and returns when all have.
inline void RunRanks(int size, const SettingPairs& pairs,
                     const std::function<void(std::shared_ptr<Endpoint>)>& body) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      EndpointOptions options;
      options.rank = Rank(r);
      options.world_size = size;
      options.store = &store;
      options.settings = SettingsOf(pairs);
      auto endpoint = Endpoint::Create(std::move(options));
      ASSERT_TRUE(endpoint.ok()) << endpoint.status();
      body(*std::move(endpoint));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// As RunRanks, with a communicator of all ranks.
inline void RunWorld(int size, const SettingPairs& pairs,
                     const std::function<void(Communicator&)>& body) {
  RunRanks(size, pairs, [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = Communicator::Create(std::move(endpoint), "world", AllRanks(size));
    ASSERT_TRUE(world.ok()) << world.status();
    body(**world);
  });
}

// Reduces `count` ones of every rank, and looks at the sums.
inline absl::Status SumOfOnes(Communicator& group, size_t count) {
  std::vector<float> data(count, 1);
  WEFT_RETURN_IF_ERROR(
      group.AllReduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum)->Wait());
  for (float value : data) {
    if (value != static_cast<float>(group.size())) {
      return absl::InternalError(absl::StrCat("a sum is ", value));
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_JOB_H_
