// Groups of the PyTorch backend whose ranks are threads of this process.
#ifndef WEFT_TESTS_COLLECTIVES_C10D_BACKENDS_H_
#define WEFT_TESTS_COLLECTIVES_C10D_BACKENDS_H_

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/c10d/backend.h"
#include "tests/collectives/job.h"

namespace weft::collectives {

using Tensors = std::vector<at::Tensor>;
using Body = std::function<void(WeftBackend&)>;

// A group of `size` ranks, threads of this process; `body` gets the backend of each.
inline void RunBackends(int size, const SettingPairs& pairs, const Body& body) {
  at::set_num_threads(1);
  RunRanks(size, pairs, [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = WeftBackend::Create(std::move(endpoint), "world", AllRanks(size));
    ASSERT_TRUE(world.ok()) << world.status();
    body(**world);
  });
}
inline void RunBackends(int size, const Body& body) { RunBackends(size, {}, body); }

inline c10d::AllreduceOptions Synchronous(std::chrono::milliseconds timeout = c10d::kUnsetTimeout) {
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  options.timeout = timeout;
  return options;
}

inline void ExpectEqual(const at::Tensor& got, const at::Tensor& wanted) {
  EXPECT_TRUE(at::equal(got, wanted)) << "got " << got << "\nwanted " << wanted;
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_C10D_BACKENDS_H_
