// Works of the PyTorch backend: their state, futures and hooks, the memory that they keep, and how
// they end where a rank, a call or a bound fails them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/c10d/backend.h"
#include "collectives/c10d/deferred.h"
#include "collectives/c10d/work.h"
#include "tests/collectives/c10d/backends.h"
#include "tests/collectives/c10d/thrown_by.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Backend, WorksTellTheirState) {
  RunBackends(2, [](WeftBackend& backend) {
    uint64_t before = backend.getSequenceNumberForGroup();
    Tensors tensors{at::ones({1 << 16})};
    auto work = backend.allreduce(tensors, {});
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_FALSE(work->exception());
    EXPECT_TRUE(work->result().at(0).is_same(tensors[0]));
    EXPECT_EQ(work->retrieveOpType(), c10d::OpType::ALLREDUCE);
    EXPECT_EQ(work->getSequencenumber(), before + 1);
    EXPECT_EQ(backend.getSequenceNumberForGroup(), before + 1);
    EXPECT_GE(work->getDuration(), 0);
    EXPECT_EQ(backend.getError(), c10d::ErrorType::SUCCESS);
    EXPECT_EQ(backend.getBackendName(), "weft");
  });
}

TEST(Backend, FuturesHoldTheResultAndRunCallbacksThatUseTheBackend) {
  RunBackends(2, [](WeftBackend& backend) {
    Tensors tensors{at::ones({100})};
    auto future = backend.allreduce(tensors, {})->getFuture();
    // As DDP's communication hooks do: the callback reduces again, and waits for that future.
    auto chained = future->then(
        [&](c10::ivalue::Future& done) {
          Tensors next{done.value().toTensorVector()[0] * 10};
          auto again = backend.allreduce(next, {})->getFuture();
          again->wait();
          return again->value();
        },
        c10::ListType::create(c10::TensorType::get()));
    chained->wait();
    ExpectEqual(chained->value().toTensorVector()[0], at::full({100}, 40.0F));
    auto late = backend.allreduce(tensors, {});
    late->wait();
    EXPECT_TRUE(late->getFuture()->completed());
  });
}

TEST(Backend, TheCompletionHookHearsOfEveryCallInOrder) {
  RunBackends(2, [](WeftBackend& backend) {
    EXPECT_FALSE(backend.hasHooks());
    std::mutex mutex;
    std::vector<std::shared_ptr<c10d::WorkInfo>> heard;
    const auto hear = [&](std::shared_ptr<c10d::WorkInfo> info) {
      std::lock_guard<std::mutex> lock(mutex);
      heard.push_back(std::move(info));
    };
    Tensors tensors{at::ones({1000})};
    backend.allreduce(tensors, {})->wait();
    const uint64_t before = backend.getSequenceNumberForGroup();
    backend.registerOnCompletionHook(hear);
    EXPECT_TRUE(backend.hasHooks());
    EXPECT_THAT(ThrownBy([&] { backend.registerOnCompletionHook(hear); }),
                HasSubstr("has a completion hook already"));
    EXPECT_EQ(backend.allreduce(tensors, Synchronous()), nullptr);
    backend.broadcast(tensors, {});  // nobody keeps its work
    backend.startCoalescing();
    backend.allreduce(tensors, {});
    backend.barrier({});
    backend.endCoalescing()->wait();
    Tensors message{at::ones({4})};
    (backend.getRank() == 0 ? backend.send(message, 1, 7) : backend.recv(message, 0, 7))->wait();
    backend.waitForPendingWorks();
    std::vector<c10d::OpType> collectives;
    std::lock_guard<std::mutex> lock(mutex);
    EXPECT_EQ(heard.size(), 5);
    for (const auto& info : heard) {
      EXPECT_GE(info->timeFinished, info->timeStarted);
      EXPECT_GE(info->activeDuration.count(), 0);
      if (c10d::isP2POp(info->opType)) continue;
      collectives.push_back(info->opType);
      EXPECT_EQ(info->seq, before + collectives.size());
    }
    EXPECT_THAT(collectives, ElementsAre(c10d::OpType::ALLREDUCE, c10d::OpType::BROADCAST,
                                         c10d::OpType::ALLREDUCE, c10d::OpType::BARRIER));
  });
}

TEST(Backend, TheCompletionHookHearsOfCallsThatShutdownEnds) {
  std::promise<void> over;
  const std::shared_future<void> is_over = over.get_future().share();
  RunBackends(2, {"collective.timeout=60s"}, [&](WeftBackend& backend) {
    if (backend.getRank() == 1) return is_over.wait();  // and calls nothing
    int heard = 0;
    backend.registerOnCompletionHook([&heard](const auto&) { ++heard; });
    Tensors tensors{at::ones({4})};
    backend.allreduce(tensors, {});
    backend.shutdown();
    EXPECT_EQ(heard, 1);
    over.set_value();
  });
}

TEST(Backend, WhatTheCompletionHookThrowsFailsTheGroup) {
  RunBackends(2, [](WeftBackend& backend) {
    if (backend.getRank() == 0) {
      backend.registerOnCompletionHook(
          [](const auto&) { throw std::runtime_error("the hook's own fault"); });
    }
    Tensors tensors{at::ones({4})};
    std::string thrown;
    for (const absl::Time end = absl::Now() + absl::Seconds(60);
         thrown.empty() && absl::Now() < end;) {
      thrown = ThrownBy([&] { backend.allreduce(tensors, Synchronous()); });
    }
    EXPECT_THAT(thrown, HasSubstr("the completion hook threw after ALLREDUCE #1: "
                                  "the hook's own fault"));
  });
}

TEST(Backend, ACoalescedWorkFailsWhereATensorOfItsCannotBeFilled) {
  RunBackends(2, [](WeftBackend& backend) {
    at::Tensor input = at::ones({2}), output = at::zeros({4});
    at::Tensor spread = at::zeros({1}).expand({4});  // all elements in one place
    backend.startCoalescing();
    backend._allgather_base(spread, input, {});
    backend._allgather_base(output, input, {});
    const auto work = backend.endCoalescing();
    EXPECT_THAT(ThrownBy([&] { work->wait(); }), HasSubstr("single memory location"));
    EXPECT_FALSE(work->isSuccess());
    EXPECT_TRUE(work->getFuture()->hasError());
    ExpectEqual(output, at::ones({4}));
  });
}

TEST(Backend, MemoryOfAWorkThatNobodyKeptIsFreedAfterItsEnd) {
  RunBackends(2, [](WeftBackend& backend) {
    constexpr int kWorks = 50, kElements = 10000;
    std::vector<std::vector<float>> memory(kWorks, std::vector<float>(kElements, 1.0F));
    int freed_early = 0;
    for (std::vector<float>& data : memory) {
      auto check = [&](void*) { freed_early += data.front() != 2 || data.back() != 2; };
      Tensors tensors{at::from_blob(data.data(), {kElements}, check, at::kFloat)};
      backend.allreduce(tensors, {});
    }
    backend.waitForPendingWorks();
    backend.barrier({})->wait();
    EXPECT_EQ(freed_early, 0);
    for (const std::vector<float>& data : memory) EXPECT_EQ(data[kElements / 2], 2.0F);
  });
}

TEST(Backend, AReceiveThatWaitsForLongKeepsNoMemoryOfLaterCalls) {
  RunBackends(2, [](WeftBackend& backend) {
    constexpr int kWorks = 300;
    const int peer = 1 - backend.getRank();
    Tensors last{at::zeros({1})};
    const auto receive = backend.recv(last, peer, 7);
    std::vector<float> data(kWorks, 1.0F);
    const auto freed = std::make_shared<int>(0);
    for (float& one : data) {
      Tensors tensors{at::from_blob(
          &one, {1}, [freed](void*) { ++*freed; }, at::kFloat)};
      backend.allreduce(tensors, {});
      backend.barrier({})->wait();
    }
    EXPECT_GE(*freed, kWorks / 2);
    Tensors sent{at::ones({1})};
    backend.send(sent, peer, 7)->wait();
    receive->wait();
    ExpectEqual(last[0], at::ones({1}));
  });
}

// `interpreter` stands for the lock of the interpreter: whoever lets go of an input takes it, and
// PyTorch has it when it asks for futures and for what is completed.
TEST(Backend, InputsGoWithoutAMutex) {
  RunBackends(2, [](WeftBackend& backend) {
    std::recursive_mutex interpreter;
    std::vector<float> data(4, 1.0F);
    for (int round = 0; round < 100; ++round) {
      std::vector<WeftBackend::WorkHandle> works;
      for (int i = 0; i < 8; ++i) {
        at::Tensor output = at::empty({8});
        at::Tensor input = at::from_blob(
            data.data(), {4},
            [&](void*) { const std::lock_guard<std::recursive_mutex> lock(interpreter); },
            at::kFloat);
        works.push_back(backend._allgather_base(output, input, {}));
      }
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
      {
        const std::lock_guard<std::recursive_mutex> lock(interpreter);
        for (const auto& work : works) futures.push_back(work->getFuture());
        for (const auto& work : works) {
          while (!work->isCompleted()) std::this_thread::yield();
        }
      }
      for (const auto& future : futures) future->waitAndThrow();
    }
  });
}

TEST(Backend, AMismatchIsThrownOnEveryRankByWaitAndByTheFuture) {
  RunBackends(2, [](WeftBackend& backend) {
    Tensors tensors{at::ones({backend.getRank() == 0 ? 4 : 8})};
    auto work = backend.allreduce(tensors, {});
    EXPECT_THROW(work->wait(), c10::DistBackendError);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_TRUE(work->exception());
    auto future = work->getFuture();
    EXPECT_TRUE(future->hasError());
    EXPECT_NE(backend.getError(), c10d::ErrorType::SUCCESS);
  });
}

TEST(Backend, AWaitEndsAtItsOwnBoundAndTheWorkGoesOn) {
  RunBackends(2, [](WeftBackend& backend) {
    Tensors token{at::ones({1})}, tensors{at::ones({4})};
    if (backend.getRank() == 0) {
      auto work = backend.allreduce(tensors, {});
      EXPECT_THROW(work->wait(std::chrono::milliseconds(20)), c10::DistBackendError);
      work->synchronize();  // waits for nothing
      EXPECT_FALSE(work->isCompleted());
      backend.send(token, 1, 0)->wait();
      work->wait();
    } else {
      backend.recv(token, 0, 0)->wait();  // sent after the other rank's wait has ended
      backend.allreduce(tensors, {})->wait();
    }
    ExpectEqual(tensors[0], at::full({4}, 2.0F));
  });
}

// Rank 0's call throws although what it has started goes on, together with rank 1's later
// all-reduce: it keeps the memory of the tensor until that is done.
void ExpectAThrowingCallGoesOn(const std::function<void(WeftBackend&, const at::Tensor&)>& throws,
                               const std::function<void(WeftBackend&, Tensors&)>& other_rank) {
  RunBackends(2, [&](WeftBackend& backend) {
    Tensors token{at::ones({1})};
    if (backend.getRank() == 1) {
      backend.recv(token, 0, 0)->wait();  // sent after the other rank's call has thrown
      Tensors tensors{at::ones({1000})};
      other_rank(backend, tensors);
      ExpectEqual(tensors[0], at::full({1000}, 2.0F));
      backend.recv(token, 0, 1)->wait();
      return;
    }
    std::vector<float> data(1000, 1.0F);
    bool freed = false;
    throws(backend, at::from_blob(
                        data.data(), {1000}, [&](void*) { freed = true; }, at::kFloat));
    EXPECT_FALSE(freed);
    EXPECT_EQ(data[0], 1.0F);
    backend.send(token, 1, 0)->wait();
    backend.waitForPendingWorks();
    EXPECT_EQ(data[0], 2.0F);
    EXPECT_EQ(data[999], 2.0F);
    backend.send(token, 1, 1)->wait();  // a call drops what is done
    EXPECT_TRUE(freed);
  });
}

TEST(Backend, ASynchronousCallWhoseTimeRanOutGoesOnAndKeepsItsMemory) {
  ExpectAThrowingCallGoesOn(
      [](WeftBackend& backend, const at::Tensor& tensor) {
        Tensors tensors{tensor};
        EXPECT_THROW(backend.allreduce(tensors, Synchronous(std::chrono::milliseconds(20))),
                     c10::DistBackendError);
      },
      [](WeftBackend& backend, Tensors& tensors) {
        EXPECT_EQ(backend.allreduce(tensors, Synchronous()), nullptr);
      });
}

TEST(Backend, WhatACallHasStartedBeforeItThrowsGoesOnAndKeepsItsMemory) {
  ExpectAThrowingCallGoesOn(
      [](WeftBackend& backend, const at::Tensor& tensor) {
        // No memory holds a copy of the second one.
        Tensors tensors{tensor, at::zeros({1}).expand({int64_t{1} << 62})};
        EXPECT_THROW(backend.allreduce_coalesced(tensors, {}), c10::Error);
      },
      [](WeftBackend& backend, Tensors& tensors) { backend.allreduce(tensors, {})->wait(); });
}

TEST(Backend, AbortEndsTheGroupOnEveryRank) {
  RunBackends(2, [](WeftBackend& backend) {
    Tensors tensors{at::ones({4})};
    if (backend.getRank() == 0) {
      auto work = backend.allreduce(tensors, {});
      auto future = work->getFuture();
      backend.abort();
      EXPECT_THROW(work->wait(), c10::DistBackendError);
      EXPECT_THROW(future->waitAndThrow(), c10::DistBackendError);
    } else {
      Tensors never{at::ones({4})};
      EXPECT_THROW(backend.recv(never, 0, 5)->wait(), c10::DistBackendError);
    }
  });
}

// Rank 0 shuts down with three calls under way: a synchronous one of another thread, one with a
// future, and one whose work nobody has kept.
TEST(Backend, ShutdownEndsWhatIsUnderWayAndFreesItsMemoryAfterwards) {
  std::promise<void> over;
  const std::shared_future<void> is_over = over.get_future().share();
  RunBackends(2, {"collective.timeout=60s"}, [&](WeftBackend& backend) {
    if (backend.getRank() == 1) return is_over.wait();  // and calls nothing
    std::string thrown;
    std::thread caller([&] {
      Tensors tensors{at::ones({4})};
      thrown = ThrownBy([&] { backend.allreduce(tensors, Synchronous()); });
    });
    while (backend.getSequenceNumberForGroup() == 0) std::this_thread::yield();
    std::vector<float> data(4, 1.0F);
    WorkPtr gathering;
    bool was_done = false;  // when the input went
    {
      at::Tensor output = at::empty({8});
      at::Tensor input = at::from_blob(
          data.data(), {4}, [&](void*) { was_done = gathering->done(); }, at::kFloat);
      auto work = backend._allgather_base(output, input, {});
      gathering = static_cast<WeftWork&>(*work).state()->works[0];
    }
    Tensors tensors{at::ones({4})};
    auto future = backend.allreduce(tensors, {})->getFuture();
    const absl::Time start = absl::Now();
    backend.shutdown();
    EXPECT_LT(absl::Now() - start, absl::Seconds(30));
    caller.join();
    EXPECT_THAT(thrown, HasSubstr("shut it down"));
    EXPECT_TRUE(future->hasError());
    EXPECT_TRUE(was_done);
    over.set_value();
  });
}

TEST(Backend, AfterAMonitoredBarrierThatRanOutTheNextOneWorks) {
  std::array<std::promise<void>, 2> ran_out;
  RunBackends(3, [&](WeftBackend& backend) {
    const int rank = backend.getRank();
    const auto wait = [&](std::chrono::milliseconds timeout) {
      c10d::BarrierOptions options;
      options.timeout = timeout;
      return ThrownBy([&] { backend.monitoredBarrier(options, true); });
    };
    if (rank == 2) {
      for (auto& other : ran_out) other.get_future().wait();
    }
    EXPECT_THAT(wait(std::chrono::milliseconds(100)),
                HasSubstr(rank == 0 ? "2 did not come" : "monitoredBarrier of group"));
    if (rank != 2) ran_out[static_cast<size_t>(rank)].set_value();
    EXPECT_EQ(wait(std::chrono::seconds(60)), "");
    EXPECT_EQ(wait(std::chrono::seconds(60)), "");
  });
}

TEST(Deferred, WhatAnOperationThrowsFailsItOnEveryRank) {
  RunRanks(2, {}, [](std::shared_ptr<Endpoint> endpoint) {
    const int rank = endpoint->rank().value();
    auto communicator = Communicator::Create(std::move(endpoint), "deferred", AllRanks(2));
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    Deferred deferred(*std::move(communicator));
    const WorkPtr work = deferred.Run([rank](Communicator& group) {
      TORCH_CHECK(rank != 0, "no memory");
      return group.Barrier()->Wait();
    });
    EXPECT_THAT(work->Wait().ToString(), HasSubstr("no memory"));
  });
}

// Rank 1 aborts the group and is left out; the others go on in a group of the two.
TEST(Backend, AfterAFailureTheSurvivorsShrinkTheGroupAndGoOn) {
  RunBackends(3, {"store.timeout=60s"}, [](WeftBackend& backend) {
    Tensors tensors{at::ones({1000})};
    if (backend.getRank() == 1) {
      backend.abort();
      return;
    }
    EXPECT_THROW(
        {
          while (true) backend.allreduce(tensors, {})->wait();
        },
        c10::DistBackendError);
    const auto shrunk = backend.shrink({1}, 0, nullptr);
    ASSERT_EQ(shrunk->getSize(), 2);
    EXPECT_EQ(shrunk->getRank(), backend.getRank() == 0 ? 0 : 1);
    Tensors ones{at::ones({1000})};
    shrunk->allreduce(ones, {})->wait();
    ExpectEqual(ones[0], at::full({1000}, 2.0F));
    shrunk->barrier({})->wait();
  });
}

}  // namespace
}  // namespace weft::collectives
