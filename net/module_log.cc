// Compiled into each library of a transport: the other end of SetModuleLog().
#include "base/log.h"

namespace weft::net {

extern "C" __attribute__((visibility("default"))) void weft_module_log_2(LogSink sink) {
  SetLogSink(sink);
  // Whoever takes the lines knows which it wants.
  SetLogLevel(sink == nullptr ? EnvironmentLogLevel(LogLevel::kInfo) : LogLevel::kDebug);
}

}  // namespace weft::net
