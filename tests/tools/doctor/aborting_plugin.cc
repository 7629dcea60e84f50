// A library that ends the process which loads it: by a signal or, where ABORTING_PLUGIN_EXITS has
// an exit status, with that.
#include <cstdlib>

[[gnu::constructor]] static void End() {
  if (const char* status = std::getenv("ABORTING_PLUGIN_EXITS")) std::exit(std::atoi(status));
  std::abort();
}
