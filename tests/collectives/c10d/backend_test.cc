// Every call of the PyTorch backend with real tensors, against results computed here.
#include "collectives/c10d/backend.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/c10d/deferred.h"
#include "collectives/c10d/work.h"
#include "tests/collectives/c10d/thrown_by.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::vector<at::Tensor>;
using Body = std::function<void(WeftBackend&)>;

void RunBackends(int size, const SettingPairs& pairs, const Body& body) {
  at::set_num_threads(1);
  RunRanks(size, pairs, [&](std::shared_ptr<Endpoint> endpoint) {
    auto world = WeftBackend::Create(std::move(endpoint), "world", AllRanks(size));
    ASSERT_TRUE(world.ok()) << world.status();
    body(**world);
  });
}
void RunBackends(int size, const Body& body) { RunBackends(size, {}, body); }

// Small whole numbers, which sum exactly in every type; from 1 to 3.
at::Tensor InputOf(int rank, at::IntArrayRef sizes, at::ScalarType type) {
  int64_t elements = c10::multiply_integers(sizes);
  return (at::arange(elements, at::kLong) * (rank + 3) % 3 + 1).to(type).reshape(sizes);
}

at::Tensor Reduced(int ranks, at::IntArrayRef sizes, at::ScalarType type,
                   c10d::ReduceOp::RedOpType op) {
  at::Tensor result = InputOf(0, sizes, type);
  for (int rank = 1; rank < ranks; ++rank) {
    at::Tensor next = InputOf(rank, sizes, type);
    switch (op) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::AVG:
        result = result + next;
        break;
      case c10d::ReduceOp::PRODUCT:
        result = result * next;
        break;
      case c10d::ReduceOp::MIN:
        result = at::minimum(result, next);
        break;
      case c10d::ReduceOp::MAX:
        result = at::maximum(result, next);
        break;
      case c10d::ReduceOp::BAND:
        result = at::bitwise_and(result, next);
        break;
      case c10d::ReduceOp::BOR:
        result = at::bitwise_or(result, next);
        break;
      default:
        result = at::bitwise_xor(result, next);
    }
  }
  if (op == c10d::ReduceOp::AVG) {
    result = at::isFloatingType(type) ? result / ranks : at::floor_divide(result, ranks);
  }
  return result.to(type);
}

c10d::AllreduceOptions Synchronous(std::chrono::milliseconds timeout = c10d::kUnsetTimeout) {
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  options.timeout = timeout;
  return options;
}

void ExpectEqual(const at::Tensor& got, const at::Tensor& wanted) {
  EXPECT_TRUE(at::equal(got, wanted)) << "got " << got << "\nwanted " << wanted;
}

c10d::AllreduceOptions With(c10d::ReduceOp::RedOpType op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

TEST(Backend, AllReduceReducesEveryTypeWithEveryOperator) {
  for (int size : {1, 2, 3}) {
    RunBackends(size, [&](WeftBackend& backend) {
      for (at::ScalarType type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                                  at::kBFloat16, at::kFloat, at::kDouble}) {
        for (auto op : {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT,
                        c10d::ReduceOp::MIN, c10d::ReduceOp::MAX, c10d::ReduceOp::BAND,
                        c10d::ReduceOp::BOR, c10d::ReduceOp::BXOR}) {
          if (op >= c10d::ReduceOp::BAND && at::isFloatingType(type)) continue;
          Tensors tensors{InputOf(backend.getRank(), {5, 7}, type)};
          EXPECT_TRUE(backend.allreduce(tensors, With(op))->wait());
          ExpectEqual(tensors[0], Reduced(size, {5, 7}, type, op));
        }
      }
      Tensors flags{at::tensor({int64_t{backend.getRank() == 0}, int64_t{0}}).to(at::kBool)};
      backend.allreduce(flags, With(c10d::ReduceOp::SUM))->wait();
      ExpectEqual(flags[0], at::tensor({int64_t{1}, int64_t{0}}).to(at::kBool));
      Tensors complex{at::full({3}, c10::complex<float>(1, 2), at::kComplexFloat)};
      backend.allreduce(complex, With(c10d::ReduceOp::SUM))->wait();
      ExpectEqual(complex[0], at::full({3}, c10::complex<float>(1.0F * size, 2.0F * size)));
    });
  }
}

TEST(Backend, NonContiguousTensorsKeepTheirLayout) {
  RunBackends(2, [](WeftBackend& backend) {
    at::Tensor whole = at::zeros({4, 6});
    at::Tensor columns = whole.narrow(1, 2, 2);
    columns.fill_(backend.getRank() + 1);
    Tensors tensors{columns};
    backend.allreduce(tensors, {})->wait();
    ExpectEqual(columns, at::full({4, 2}, 3.0F));
    EXPECT_EQ(whole.sum().item<float>(), 24);  // nothing beside them was touched
    at::Tensor output = at::zeros({3, 4}).t(), input = at::arange(6).to(at::kFloat).reshape({2, 3});
    backend._allgather_base(output, input, {})->wait();
    ExpectEqual(output, at::cat({input, input}));
    // All elements in one place, which cannot be written to.
    const bool root = backend.getRank() == 0;
    Tensors spread{root ? at::full({1}, 7.0F).expand({8}) : at::zeros({8})};
    const int64_t version = spread[0]._version();
    backend.broadcast(spread, {})->wait();
    ExpectEqual(spread[0], at::full({8}, 7.0F));
    EXPECT_EQ(spread[0]._version(), version);
  });
}

// conj() changes a bit of the tensor and not its memory; so does what negates lazily.
TEST(Backend, LazyConjugatesAndNegativesAreMovedAsTheNumbersThatTheyAre) {
  RunBackends(2, [](WeftBackend& backend) {
    const bool root = backend.getRank() == 0;
    const auto numbers = [](float real, float imaginary) {
      return at::full({2}, c10::complex<float>(real, imaginary), at::kComplexFloat);
    };
    for (const bool sends : {true, false}) {  // who has the lazy one
      Tensors tensors{root ? numbers(1, 2) : numbers(0, 0)};
      if (root == sends) tensors[0] = tensors[0].conj();
      backend.broadcast(tensors, {})->wait();
      ExpectEqual(tensors[0].resolve_conj(), numbers(1, sends ? -2.0F : 2.0F));
    }
    at::Tensor conjugate = numbers(1, 2).conj(), all = at::empty({4}, at::kComplexFloat);
    backend._allgather_base(all, conjugate, {})->wait();
    ExpectEqual(all, at::cat({numbers(1, -2), numbers(1, -2)}));
    Tensors sum{conjugate};
    backend.allreduce(sum, {})->wait();
    ExpectEqual(conjugate.resolve_conj(), numbers(2, -4));
    Tensors negative{at::_neg_view(at::ones({2}))};
    backend.allreduce(negative, {})->wait();
    ExpectEqual(negative[0].resolve_neg(), at::full({2}, -2.0F));
    // Outputs that lie one behind the other in memory.
    std::vector<Tensors> lists{conjugate.split_with_sizes({1, 1})};
    Tensors own{numbers(3, 5).narrow(0, 0, 1)};
    backend.allgather(lists, own, {})->wait();
    ExpectEqual(conjugate.resolve_conj(), numbers(3, 5));
  });
}

TEST(Backend, InferenceTensorsAreFilledOutsideOfInferenceMode) {
  RunBackends(2, [](WeftBackend& backend) {
    at::Tensor columns;
    std::vector<Tensors> lists;
    c10::intrusive_ptr<c10d::Work> reduced, gathered;
    {
      const c10::InferenceMode mode;
      columns = at::ones({2, 3}).t();
      lists = {{at::zeros({2}), at::zeros({2})}};
      Tensors tensors{columns}, own{at::full({2}, backend.getRank() + 1.0F)};
      reduced = backend.allreduce(tensors, {});
      gathered = backend.allgather(lists, own, {});
    }
    reduced->wait();
    gathered->getFuture()->waitAndThrow();  // filled by the future's thread
    ExpectEqual(columns, at::full({3, 2}, 2.0F));
    for (int rank = 0; rank < 2; ++rank) {
      ExpectEqual(lists[0][rank], at::full({2}, rank + 1.0F));
    }
  });
}

TEST(Backend, MovesAnyTypeToAndFromTheRoot) {
  RunBackends(3, [](WeftBackend& backend) {
    const int rank = backend.getRank(), root = 1;
    for (at::ScalarType type : {at::kBool, at::kByte, at::kHalf, at::kBFloat16, at::kInt,
                                at::kDouble, at::kComplexDouble, at::kFloat8_e4m3fn}) {
      auto bits = [&](int from) {
        at::Tensor bytes = at::full({4, at::empty({1}, type).element_size()}, from % 2, at::kByte);
        return bytes.view(type).reshape({2, 2});
      };
      auto same = [&](const at::Tensor& a, int from) {
        ExpectEqual(a.contiguous().view(at::kByte), bits(from).view(at::kByte));
      };
      c10d::BroadcastOptions broadcast;
      broadcast.rootRank = root;
      Tensors tensors{bits(rank)};
      backend.broadcast(tensors, broadcast)->wait();
      same(tensors[0], root);

      c10d::GatherOptions gather;
      gather.rootRank = root;
      std::vector<Tensors> lists;
      if (rank == root) lists.push_back({bits(0), bits(0), bits(0)});
      Tensors own{bits(rank)};
      backend.gather(lists, own, gather)->wait();
      for (int from = 0; rank == root && from < 3; ++from) same(lists[0][from], from);

      c10d::ScatterOptions scatter;
      scatter.rootRank = root;
      if (rank == root) lists[0] = {bits(0), bits(1), bits(2)};
      Tensors part{bits(1)};
      backend.scatter(part, lists, scatter)->wait();
      same(part[0], rank);
    }
    c10d::ReduceOptions reduce;
    reduce.rootRank = root;
    Tensors sums{InputOf(rank, {9}, at::kFloat)};
    backend.reduce(sums, reduce)->wait();
    ExpectEqual(sums[0], rank == root ? Reduced(3, {9}, at::kFloat, c10d::ReduceOp::SUM)
                                      : InputOf(rank, {9}, at::kFloat));
  });
}

TEST(Backend, GathersAndScattersTensorsAndLists) {
  RunBackends(4, [](WeftBackend& backend) {
    const int rank = backend.getRank();
    at::Tensor input = InputOf(rank, {3}, at::kFloat), output = at::empty({12});
    Tensors all;
    for (int from = 0; from < 4; ++from) all.push_back(InputOf(from, {3}, at::kFloat));
    backend._allgather_base(output, input, {})->wait();
    ExpectEqual(output, at::cat(all));
    // Apart, and as views of one tensor, which needs no copy.
    at::Tensor block = at::zeros({12});
    for (Tensors list : {Tensors{at::empty({3}), at::empty({3}), at::empty({3}), at::empty({3})},
                         block.chunk(4)}) {
      std::vector<Tensors> lists{list};
      Tensors inputs{input};
      backend.allgather(lists, inputs, {})->wait();
      ExpectEqual(at::cat(lists[0]), at::cat(all));
    }
    ExpectEqual(block, at::cat(all));

    at::Tensor sum = Reduced(4, {8}, at::kFloat, c10d::ReduceOp::SUM).narrow(0, 2 * rank, 2);
    at::Tensor whole = InputOf(rank, {8}, at::kFloat), part = at::empty({2});
    backend._reduce_scatter_base(part, whole, {})->wait();
    ExpectEqual(part, sum);
    for (Tensors list :
         {whole.chunk(4), Tensors{whole.narrow(0, 0, 2).clone(), whole.narrow(0, 2, 2).clone(),
                                  whole.narrow(0, 4, 2), whole.narrow(0, 6, 2)}}) {
      std::vector<Tensors> lists{list};
      Tensors outputs{at::zeros({2})};
      backend.reduce_scatter(outputs, lists, {})->wait();
      ExpectEqual(outputs[0], sum);
    }

    Tensors sources{input, whole}, gathered{at::empty({12}), at::empty({32})};
    backend.allgather_into_tensor_coalesced(gathered, sources, {})->wait();
    ExpectEqual(gathered[0], at::cat(all));
    Tensors wholes{whole, whole * 2}, parts{at::empty({2}), at::empty({2})};
    backend.reduce_scatter_tensor_coalesced(parts, wholes, {})->wait();
    ExpectEqual(parts[1], sum * 2);
    Tensors many{whole.clone(), at::ones({1}), at::empty({0})};
    backend.allreduce_coalesced(many, {})->wait();
    ExpectEqual(many[0], Reduced(4, {8}, at::kFloat, c10d::ReduceOp::SUM));
    ExpectEqual(many[1], at::full({1}, 4.0F));
  });
}

TEST(Backend, AllToAllExchangesEvenUnevenAndLists) {
  RunBackends(3, [](WeftBackend& backend) {
    const int rank = backend.getRank();
    // Row `to` of rank `from` is 10 * from + to.
    at::Tensor input = at::arange(3).reshape({3, 1}) + 10 * rank, output = at::empty_like(input);
    std::vector<int64_t> even;
    backend.alltoall_base(output, input, even, even, {})->wait();
    ExpectEqual(output, at::arange(3).reshape({3, 1}) * 10 + rank);

    // Rank `from` sends `to` rows of two elements to each rank `to`.
    std::vector<int64_t> to_rows{0, 1, 2}, from_rows(3, rank);
    at::Tensor rows = at::full({3, 2}, rank, at::kInt), got = at::full({3 * rank, 2}, -1, at::kInt);
    backend.alltoall_base(got, rows, from_rows, to_rows, {})->wait();
    ExpectEqual(
        got,
        at::arange(3, at::kInt).repeat_interleave(rank).reshape({-1, 1}).expand({3 * rank, 2}));

    Tensors inputs, outputs, wanted;
    for (int peer = 0; peer < 3; ++peer) {
      inputs.push_back(at::full({peer + 1}, rank, at::kLong));
      outputs.push_back(at::empty({rank + 1}, at::kLong));
      wanted.push_back(at::full({rank + 1}, peer, at::kLong));
    }
    backend.alltoall(outputs, inputs, {})->wait();
    ExpectEqual(at::cat(outputs), at::cat(wanted));
  });
}

TEST(Backend, SendsMeetReceivesByTag) {
  RunBackends(2, [](WeftBackend& backend) {
    Tensors first{at::full({3}, 1.0F)}, second{at::full({3}, 2.0F)};
    if (backend.getRank() == 0) {
      auto a = backend.send(first, 1, 7), b = backend.send(second, 1, 8);
      a->wait();
      b->wait();
    } else {
      Tensors x{at::zeros({3})}, y{at::zeros({3})};
      auto b = backend.recv(y, 0, 8), a = backend.recv(x, 0, 7);
      // Futures of receives complete in whatever order their data comes.
      b->getFuture()->wait();
      a->getFuture()->wait();
      ExpectEqual(x[0], first[0]);
      ExpectEqual(y[0], second[0]);
    }
    backend.barrier({})->wait();
  });
}

TEST(Backend, AReceiveFromAnyRankTellsItsSource) {
  RunBackends(3, [](WeftBackend& backend) {
    if (backend.getRank() != 0) {
      Tensors own{at::full({3}, static_cast<float>(backend.getRank()))};
      backend.send(own, 0, 7)->wait();
      return;
    }
    std::set<int> sources;
    for (int i = 0; i < 2; ++i) {
      Tensors received{at::zeros({3})};
      auto work = backend.recvAnysource(received, 7);
      work->wait();
      sources.insert(work->sourceRank());
      ExpectEqual(received[0], at::full({3}, static_cast<float>(work->sourceRank())));
    }
    EXPECT_EQ(sources, (std::set<int>{1, 2}));
  });
}

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

TEST(Backend, ASparseAllReduceHasThePriorityOfItsGroup) {
  RunBackends(2, [](WeftBackend& backend) {
    backend.SetPriority(Priority::kLow);
    Tensors tensors{at::ones({2, 2}).to_sparse()};
    backend.allreduce(tensors, {})->wait();
    backend.barrier({})->wait();
    ExpectEqual(tensors[0].to_dense(), at::full({2, 2}, 2.0F));
    EXPECT_THAT(backend.endpoint()->Describe(),
                AllOf(HasSubstr("priority low: "), Not(HasSubstr("priority normal: "))));
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

TEST(Backend, GroupsAreIndependent) {
  RunRanks(4, {}, [](std::shared_ptr<Endpoint> endpoint) {
    const int rank = endpoint->rank().value(), side = rank % 2;
    auto world = WeftBackend::Create(endpoint, "world", AllRanks(4));
    auto half =
        WeftBackend::Create(endpoint, side == 0 ? "even" : "odd", {Rank(side), Rank(side + 2)});
    ASSERT_TRUE(world.ok() && half.ok()) << world.status() << half.status();
    EXPECT_EQ((*half)->getRank(), rank / 2);
    EXPECT_EQ((*half)->getSize(), 2);
    Tensors all{at::full({1000}, rank + 1.0F)}, some{at::full({1000}, rank + 1.0F)};
    auto first = (*world)->allreduce(all, {}), second = (*half)->allreduce(some, {});
    second->wait();
    first->wait();
    ExpectEqual(all[0], at::full({1000}, 10.0F));
    ExpectEqual(some[0], at::full({1000}, side == 0 ? 4.0F : 6.0F));
  });
}

TEST(Backend, WrongArgumentsAreThrownWithWhatIsWrong) {
  RunBackends(1, [](WeftBackend& backend) {
    Tensors two{at::ones({1}), at::ones({1})}, half{at::ones({2, 3}, at::kHalf)};
    EXPECT_THAT(ThrownBy([&] { backend.allreduce(two, {}); }), HasSubstr("exactly one"));
    EXPECT_THAT(ThrownBy([&] { backend.allreduce(half, With(c10d::ReduceOp::BXOR)); }),
                HasSubstr("operator bxor is not defined for Half [2, 3] on cpu"));
    Tensors undefined{at::ones({1}), at::Tensor()};
    EXPECT_THAT(ThrownBy([&] { backend.allreduce_coalesced(undefined, {}); }),
                HasSubstr("weft coalesced all-reduce: got an undefined tensor"));
    Tensors elsewhere{at::empty({2}, at::TensorOptions().device(at::kMeta))};
    EXPECT_THAT(ThrownBy([&] { backend.broadcast(elsewhere, {}); }), HasSubstr("on meta"));
    Tensors sparse{at::ones({2, 2}).to_sparse()};
    EXPECT_THAT(ThrownBy([&] { backend.broadcast(sparse, {}); }), HasSubstr("not dense"));
    Tensors freed{at::_efficientzerotensor({2})};  // whose storage has no memory
    EXPECT_THAT(ThrownBy([&] { backend.broadcast(freed, {}); }), HasSubstr("has no memory"));
    c10d::BroadcastOptions far;
    far.rootRank = 3;
    EXPECT_THAT(ThrownBy([&] { backend.broadcast(half, far); }), HasSubstr("root 3 is not a rank"));
    at::Tensor output = at::empty({5}), input = at::empty({4});
    EXPECT_THAT(ThrownBy([&] { backend._allgather_base(output, input, {}); }),
                HasSubstr("asks for 4"));
    Tensors one{at::empty({1})}, nothing;
    EXPECT_THAT(ThrownBy([&] { backend.alltoall(one, nothing, {}); }), HasSubstr("got 0 tensors"));
    EXPECT_THAT(ThrownBy([&] { backend.alltoall(nothing, one, {}); }), HasSubstr("got 0 tensors"));
    Tensors odd{
        at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1}, at::kUInt16), {4})};
    EXPECT_THAT(ThrownBy([&] { backend.allreduce(odd, {}); }),
                HasSubstr("sum is not defined for UInt16"));
    std::vector<int64_t> none, splits{9};
    EXPECT_THAT(ThrownBy([&] { backend.alltoall_base(output, input, none, splits, {}); }),
                HasSubstr("add up to 9"));
  });
}

TEST(Backend, AListThatHasAWrongTensorStartsNothing) {
  RunBackends(2, [](WeftBackend& backend) {
    Tensors tensors{at::ones({4}), at::ones({4}, at::kUInt16)};
    EXPECT_THAT(ThrownBy([&] { backend.allreduce_coalesced(tensors, {}); }),
                HasSubstr("sum is not defined for UInt16"));
    backend.waitForPendingWorks();
    backend.barrier({})->wait();
    ExpectEqual(tensors[0], at::ones({4}));
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
