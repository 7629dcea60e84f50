// A program of weft-init's kind as a test runs it: with its result as JSON.
#ifndef WEFT_TESTS_TOOLS_INIT_JSON_OUTCOME_H_
#define WEFT_TESTS_TOOLS_INIT_JSON_OUTCOME_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/run_program.h"

namespace weft::init {

struct Outcome : weft::Outcome {
  nlohmann::json result;  // null: it wrote none
};

// `program`, in the folder of programs, with these arguments and a file for --json.
inline Outcome RunWithJson(const std::string& program, const std::string& arguments) {
  const std::string file = testing::TempDir() + "init-" + std::to_string(getpid()) + ".json";
  Outcome outcome{RunProgram(program + " " + arguments + " --json " + file), {}};
  std::ifstream stream(file);
  if (stream) outcome.result = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  unlink(file.c_str());
  return outcome;
}

// The phases that the sub-command "phases" reports add up to its total.
inline void ExpectPhasesAddUp(const nlohmann::json& result) {
  double sum = 0;
  for (const char* phase : {"connect", "register", "exchange", "groups", "connections"}) {
    sum += result["phases"][phase].get<double>();
  }
  EXPECT_NEAR(sum, result["total_seconds"].get<double>(), 1e-6);
  EXPECT_GT(result["server_cpu_seconds"], 0);
}

}  // namespace weft::init

#endif  // WEFT_TESTS_TOOLS_INIT_JSON_OUTCOME_H_
