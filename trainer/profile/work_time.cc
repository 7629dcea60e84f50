#include "trainer/profile/work_time.h"

#include <numeric>

#include "base/clock.h"

namespace weft::train {
namespace {

struct Account {
  Work work = Work::kRest;  // under way
  int64_t since_ns = SystemClock::Nanoseconds();
  std::array<int64_t, kWorkKinds> spent_ns = {};

  // What has passed belongs to the work under way; from now on `next` is.
  Work Turn(Work next) {
    const int64_t now = SystemClock::Nanoseconds();
    spent_ns[static_cast<size_t>(work)] += now - since_ns;
    since_ns = now;
    const Work before = work;
    work = next;
    return before;
  }
};

thread_local Account account;

}  // namespace

const char* NameOf(Work work) {
  switch (work) {
    case Work::kGemm:
      return "gemm";
    case Work::kAttention:
      return "attention";
    case Work::kElementwise:
      return "elementwise";
    case Work::kLoss:
      return "loss";
    case Work::kEmbedding:
      return "embedding";
    case Work::kGradients:
      return "gradients";
    case Work::kOptimizer:
      return "optimizer";
    case Work::kCommunication:
      return "communication";
    case Work::kData:
      return "data";
    case Work::kRest:
      break;
  }
  return "rest";
}

WorkScope::WorkScope(Work work) : before_(account.Turn(work)) {}
WorkScope::~WorkScope() { account.Turn(before_); }

double WorkSeconds::total() const { return std::accumulate(of.begin(), of.end(), 0.0); }

WorkSeconds TakeWorkSeconds() {
  account.Turn(account.work);
  WorkSeconds seconds;
  for (size_t kind = 0; kind < kWorkKinds; ++kind) {
    seconds.of[kind] = static_cast<double>(account.spent_ns[kind]) * 1e-9;
  }
  account.spent_ns = {};
  return seconds;
}

}  // namespace weft::train
