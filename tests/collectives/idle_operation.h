// An operation that moves nothing, for tests of what holds operations.
#ifndef WEFT_TESTS_COLLECTIVES_IDLE_OPERATION_H_
#define WEFT_TESTS_COLLECTIVES_IDLE_OPERATION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "collectives/operation.h"

namespace weft::collectives {

class IdleOperation : public Operation {
 public:
  explicit IdleOperation(int64_t now_ns) : Operation(nullptr, std::make_shared<Group>(), now_ns) {}
  void Begin(Peers&) override {}
  bool Advance(Peers&, uint64_t) override { return false; }
  bool complete() const override { return false; }
  absl::Status failure(int*) const override { return absl::OkStatus(); }
  bool AtRest() override { return true; }
  bool Holds(int) override { return false; }
  bool Needs(int) const override { return false; }
  PostedCount Posted(int) override { return {}; }
  std::string Describe() const override { return "nothing"; }
  bool has_sequence() const override { return false; }
  uint32_t sequence() const override { return 0; }
  CallRecord ToRecord() const override { return {}; }
};

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_IDLE_OPERATION_H_
