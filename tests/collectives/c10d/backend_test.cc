// Every call of the PyTorch backend with real tensors, against results computed here.
#include "collectives/c10d/backend.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "tests/collectives/c10d/backends.h"
#include "tests/collectives/c10d/thrown_by.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace weft::collectives
