// Calls through PyTorch's dispatcher before and after the way is shortened: the same numbers, the
// same errors, and the same warning where a gradient goes back through a call.
#include "collectives/c10d/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "collectives/c10d/backend.h"
#include "tests/collectives/c10d/thrown_by.h"
#include "tests/collectives/job.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr char kOperators[][48] = {"c10d::allreduce_",
                                   "c10d::broadcast_",
                                   "c10d::_allgather_base_",
                                   "c10d::_reduce_scatter_base_",
                                   "c10d::allreduce_coalesced_",
                                   "c10d::allgather_into_tensor_coalesced_",
                                   "c10d::reduce_scatter_tensor_coalesced_",
                                   "c10d::reduce_",
                                   "c10d::alltoall_base_",
                                   "c10d::barrier",
                                   "c10d::send",
                                   "c10d::recv_"};

bool HasAutogradKernel(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").hasKernelForDispatchKey(
      c10::DispatchKey::AutogradCPU);
}

// A process group of PyTorch's over a backend of ours.
Group GroupOf(const std::shared_ptr<Endpoint>& endpoint) {
  const int size = endpoint->world_size();
  auto backend = WeftBackend::Create(endpoint, "world", AllRanks(size));
  EXPECT_TRUE(backend.ok()) << backend.status();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                       endpoint->rank().value(), size);
  constexpr auto kCustom = c10d::ProcessGroup::BackendType::CUSTOM;
  group->setBackend(c10::DeviceType::CPU, kCustom, *backend);
  group->setDefaultBackend(kCustom);
  return group;
}

// What rank 0 of two sees: a number for each call, then the text of a wrong one.
std::pair<std::vector<float>, std::string> SeenByRank0() {
  std::pair<std::vector<float>, std::string> seen;
  RunRanks(2, {}, [&seen](std::shared_ptr<Endpoint> endpoint) {
    const Group group = GroupOf(endpoint);
    const int rank = group->getRank(), other = 1 - rank;
    std::vector<float> numbers;
    const auto note = [&numbers](const at::Tensor& tensor) {
      numbers.push_back(tensor.sum().item<float>());
    };
    const float own = static_cast<float>(rank) + 1;
    Tensors tensors{at::full({3}, own)};
    group->allreduce(tensors, {})->wait();
    note(tensors[0]);
    Tensors shared{at::full({3}, own)};
    group->broadcast(shared, {})->wait();
    note(shared[0]);
    at::Tensor whole = at::zeros({4}), part = at::full({2}, own);
    group->_allgather_base(whole, part, {})->wait();
    note(whole);
    group->_reduce_scatter_base(part, whole, {})->wait();
    note(part);
    Tensors both{at::full({2}, own), at::full({5}, own)};
    group->allreduce_coalesced(both, {})->wait();
    note(both[0]);
    note(both[1]);
    Tensors wholes{at::zeros({4})}, parts{at::full({2}, own)};
    group->allgather_into_tensor_coalesced(wholes, parts)->wait();
    note(wholes[0]);
    group->reduce_scatter_tensor_coalesced(parts, wholes, {})->wait();
    note(parts[0]);
    Tensors reduced{at::full({3}, own)};
    group->reduce(reduced, {})->wait();
    note(reduced[0]);
    at::Tensor received = at::zeros({2}), given = at::full({2}, own);
    std::vector<int64_t> even, also_even;
    group->alltoall_base(received, given, even, also_even, {})->wait();
    note(received);
    Tensors sent{at::full({3}, own)}, message{at::zeros({3})};
    auto sending = group->send(sent, other, 7);
    group->recv(message, other, 7)->wait();
    sending->wait();
    note(message[0]);
    group->barrier({})->wait();
    const std::string thrown = ThrownBy([&] { group->send(sent, rank, 7); });
    if (rank == 0) seen = {numbers, thrown};
  });
  return seen;
}

class CountingHandler : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

// What came of an all-reduce of a tensor that requires a gradient, and of a backward pass through
// it; `warnings_without`: of calls under NoGradGuard.
struct Backward {
  std::vector<float> gradient;
  std::vector<std::string> warnings, warnings_without;
  bool output_requires_gradient = false;
};
Backward GoBackward() {
  Backward seen;
  RunRanks(1, {}, [&seen](std::shared_ptr<Endpoint> endpoint) {
    const Group group = GroupOf(endpoint);
    CountingHandler handler;
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);
    at::Tensor leaf = at::ones({2}).requires_grad_();
    Tensors tensors{leaf * 3};
    group->allreduce(tensors, {})->wait();
    at::Tensor gathered = at::empty({2}), input = leaf * 5;
    group->_allgather_base(gathered, input, {})->wait();
    seen.output_requires_gradient = gathered.requires_grad();
    tensors[0].sum().backward();
    seen.gradient = {leaf.grad()[0].item<float>(), leaf.grad()[1].item<float>()};
    seen.warnings = std::exchange(handler.texts, {});
    const at::NoGradGuard no_gradient;
    Tensors leaves{leaf}, plain{at::ones({2})};
    group->broadcast(leaves, {})->wait();
    group->allreduce(plain, {})->wait();
    seen.warnings_without = handler.texts;
  });
  return seen;
}

TEST(Dispatch, ShortenedCallsBringTheSameNumbersErrorsAndWarnings) {
  for (const char* name : kOperators) ASSERT_FALSE(HasAutogradKernel(name)) << name;
  const auto before = SeenByRank0();
  const Backward backward_before = GoBackward();
  ShortenDispatch();
  ShortenDispatch();  // does nothing
  for (const char* name : kOperators) EXPECT_TRUE(HasAutogradKernel(name)) << name;
  EXPECT_EQ(SeenByRank0(), before);
  EXPECT_THAT(before.first, ElementsAre(9, 3, 6, 4, 6, 15, 6, 4, 9, 3, 6));
  EXPECT_THAT(before.second, HasSubstr("cannot be its own target"));
  const Backward backward = GoBackward();
  EXPECT_THAT(backward.gradient, ElementsAre(3, 3));
  EXPECT_THAT(backward.warnings, ElementsAre(HasSubstr("an autograd kernel was not registered")));
  EXPECT_THAT(backward.warnings_without, ElementsAre());
  EXPECT_EQ(backward.gradient, backward_before.gradient);
  EXPECT_EQ(backward.warnings, backward_before.warnings);
  EXPECT_EQ(backward.warnings_without, backward_before.warnings_without);
  EXPECT_EQ(backward.output_requires_gradient, backward_before.output_requires_gradient);
}

}  // namespace
}  // namespace weft::collectives
