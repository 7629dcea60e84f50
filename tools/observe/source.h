// Where weft-top, weft-trace and weft-diagnose take a job from: a folder of rings on this host, or
// agents of several hosts. One set of options for all.
#ifndef WEFT_TOOLS_OBSERVE_SOURCE_H_
#define WEFT_TOOLS_OBSERVE_SOURCE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tools/observe/agent_client.h"
#include "tools/observe/job_view.h"

namespace weft::observe {

class Source {
 public:
  Source() = default;
  // Reads the agents at these addresses, "host:port", each with its token.
  Source(std::string job, const std::map<std::string, std::string>& agents);
  ~Source();
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Gets the lines that would be on standard error.
  using Say = std::function<void(const std::string& line)>;
  void SetSay(Say say) { say_ = std::move(say); }

  // --records, --job, --agent, --token-file, --replay. With agents, the first Update() then takes
  // SIGINT, SIGTERM and SIGHUP, which end the program once what was fetched is removed.
  void Register(CLI::App& app);
  // Reads what is new. kNotFound, with what to do, while there is no ring of the job. An agent that
  // does not answer is said once, and the states of its ranks are unknown; where
  // none answers, its error.
  absl::Status Update();
  // False after an Update() that has not come as far as to ask an agent or to look into the folder.
  bool is_ready() const { return watch_ != nullptr; }
  const JobView& view() const { return watch_->view(); }
  // Files of the job's rings, for weft-trace.
  std::vector<std::string> files() const;
  bool replay() const { return replay_; }
  uint64_t received() const;  // bytes from agents

 private:
  absl::Status ConnectAgents();
  absl::Status Fetch();

  Say say_ = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  std::string folder_, job_, token_file_, token_;
  std::vector<std::string> agents_;
  std::map<std::string, std::string> tokens_;  // by agent; empty: all have the file's
  bool replay_ = false;
  bool is_of_a_program_ = false;  // which its command line has told what to read
  std::string fetched_;           // a folder of our own
  std::vector<AgentClient> clients_;
  std::vector<bool> silent_;  // by agent: it did not answer, and that was said
  std::unique_ptr<JobWatch> watch_;
};

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_SOURCE_H_
