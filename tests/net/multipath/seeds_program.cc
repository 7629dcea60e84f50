// multipath_seeds: the multipath protocol under seeded faults, as many seeds as one likes.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "tests/net/multipath/world.h"

int main(int argc, char** argv) {
  using weft::net::multipath::WorldResult;
  uint64_t first = 1, count = 10'000, seed = 0;
  double minutes = 0;
  CLI::App app("multipath_seeds: the multipath protocol under seeded faults", "multipath_seeds");
  app.option_defaults()->always_capture_default();
  app.add_option("--seed", seed, "This seed alone, with every packet printed; 0: many");
  app.add_option("--first", first, "The first seed");
  app.add_option("--count", count, "So many seeds");
  app.add_option("--minutes", minutes, "Or for so long; 0: as many as --count says");
  CLI11_PARSE(app, argc, argv);
  if (seed != 0) {
    WorldResult result = weft::net::multipath::RunWorld(seed, true);
    absl::PrintF("seed %d: %s\n%s\n", seed, result.drawn,
                 result.error.empty() ? "all well" : result.error);
    return result.error.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  auto begin = weft::SystemClock::Nanoseconds();
  auto seconds = [&] {
    return static_cast<double>(weft::SystemClock::Nanoseconds() - begin) * 1e-9;
  };
  WorldResult sum;
  int64_t failures = 0, done = 0;
  double last = 0;
  for (uint64_t i = first; minutes > 0 ? seconds() < minutes * 60 : i < first + count;
       ++i, ++done) {
    WorldResult result = weft::net::multipath::RunWorld(i);
    if (!result.error.empty()) {
      ++failures;
      absl::FPrintF(stderr, "seed %d: %s\n  %s\n", i, result.error, result.drawn);
    }
    sum.packets += result.packets;
    sum.lost += result.lost;
    sum.retransmissions += result.retransmissions;
    sum.messages += result.messages;
    sum.failed += result.failed;
    sum.restarts += result.restarts;
    if (seconds() - last > 5) {
      last = seconds();
      absl::FPrintF(stderr, "%d seeds, %d failures, %.0f s\n", done + 1, failures, last);
    }
  }
  nlohmann::ordered_json json = {{"seeds", done},
                                 {"failures", failures},
                                 {"packets", sum.packets},
                                 {"lost", sum.lost},
                                 {"retransmissions", sum.retransmissions},
                                 {"messages", sum.messages},
                                 {"messages_failed", sum.failed},
                                 {"restarts", sum.restarts},
                                 {"seconds", seconds()}};
  std::puts(json.dump().c_str());
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
