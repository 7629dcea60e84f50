#include "tests/bench/init/peer_store.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::init {

std::string RunningServer::note() const {
  return absl::StrCat("the server at ", address_, " was there before; its CPU time is not known");
}

StartedServer::StartedServer(std::unique_ptr<Child> child, int port, std::string note)
    : child_(std::move(child)),
      address_(absl::StrCat("127.0.0.1:", port)),
      note_(std::move(note)),
      before_(child_->cpu_seconds()) {}

double StartedServer::cpu_seconds() const {
  const double now = child_->cpu_seconds();
  return now < 0 || before_ < 0 ? -1 : now - before_;
}

}  // namespace weft::init
