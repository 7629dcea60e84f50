// A reader of one weft-agent: keeps copies of the rings of its host, and fetches what is new only.
#ifndef WEFT_TOOLS_OBSERVE_AGENT_CLIENT_H_
#define WEFT_TOOLS_OBSERVE_AGENT_CLIENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/observe/http.h"
#include "tools/observe/job_view.h"
#include "tools/observe/ring_changes.h"

namespace weft::observe {

class AgentClient {
 public:
  // The copies are files FOLDER/NUMBER-NAME-MADE.weft; `number` tells agents apart.
  AgentClient(HttpAddress agent, std::string token, const std::string& folder, size_t number);
  AgentClient(AgentClient&&) = default;

  // One look: which rings there are, and what is new in each; a ring that is gone keeps its copy.
  // Bounded to some seconds a request. After an error all that was known stays as it was, but the
  // states of processes, which are unknown.
  absl::Status Fetch();
  // What the agent said of each ring, by the copy's path.
  const std::map<std::string, JobWatch::Told>& told() const { return told_; }
  uint64_t received() const { return received_; }  // bytes of answers, without HTTP's headers

 private:
  absl::StatusOr<std::string> Get(const std::string& path);
  absl::Status FetchChanges(const std::vector<std::string>& names);
  RingCopy& CopyOf(const std::string& name);

  const HttpAddress agent_;
  const std::string token_, prefix_;
  std::map<std::string, RingCopy> copies_;  // by the ring's name
  std::map<std::string, JobWatch::Told> told_;
  uint64_t received_ = 0;
};

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_AGENT_CLIENT_H_
