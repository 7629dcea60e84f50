// What the benchmark of stores prints beside what weft-init does.
#ifndef WEFT_TESTS_BENCH_INIT_REPORT_H_
#define WEFT_TESTS_BENCH_INIT_REPORT_H_

#include <nlohmann/json.hpp>

#include "tests/bench/init/compare.h"
#include "tests/bench/init/floor.h"
#include "tools/init/options.h"

namespace weft::init {

nlohmann::ordered_json PrintComparison(const Options& options, const Comparison& comparison);
nlohmann::ordered_json PrintFloor(const Options& options, const FloorMeasurement& measurement);

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_REPORT_H_
