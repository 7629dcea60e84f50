// A program of ours as its users run it: its exit status and what it printed.
#ifndef WEFT_TESTS_RUN_PROGRAM_H_
#define WEFT_TESTS_RUN_PROGRAM_H_

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace weft {

struct Outcome {
  int status = -1;  // exit status; 128 + the signal that ended the program
  std::string output;
};

// `streams`: which of the two the output is, in the shell's words.
inline Outcome Shell(const std::string& command, const std::string& streams = "2>&1") {
  Outcome outcome;
  FILE* pipe = popen((command + " " + streams).c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

// "weft-sim --help", of this build.
inline Outcome RunProgram(const std::string& command_line, const std::string& streams = "2>&1") {
  return Shell(std::string(std::getenv("WEFT_BIN")) + "/" + command_line, streams);
}

// The program refused its command line, with `text` in what it said.
inline void ExpectWrongUsage(const Outcome& outcome, const std::string& text) {
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_NE(outcome.output.find(text), std::string::npos) << text << "\n" << outcome.output;
}

}  // namespace weft

#endif  // WEFT_TESTS_RUN_PROGRAM_H_
