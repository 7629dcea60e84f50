// A library that ends the process which loads it.
#include <cstdlib>

[[gnu::constructor]] static void End() { std::abort(); }
