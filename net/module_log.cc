// Compiled into each library of a transport: the other end of SetModuleLog().
#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.h"
#include "net/transport_module.h"

namespace weft::net {
namespace {

class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(ModuleLog log) : log_(log) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    log_(static_cast<int>(message.level),
         std::string(message.payload.data(), message.payload.size()).c_str());
  }
  void flush_() override {}
  const ModuleLog log_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void weft_module_log_1(ModuleLog log) {
  static std::shared_ptr<spdlog::logger> before;  // the program's own
  if (before == nullptr) before = spdlog::default_logger();
  if (log == nullptr) return spdlog::set_default_logger(before);
  auto logger = std::make_shared<spdlog::logger>("weft", std::make_shared<Sink>(log));
  logger->set_level(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace weft::net
