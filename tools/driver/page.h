// The driver's page: the job's hosts and ranks, what was done, and eviction by hand.
//
//   GET  /             HTML, without data: it asks for the token and shows what follows
//   GET  /job.json     the job
//   POST /evict/HOST   evicts a host; a spare takes its node
//   POST /replay       replays a step, to find a host that computes wrongly (recovery/replay.h)
//   POST /stop         stops the job
//
// All but "/" need the token (Authorization: Bearer TOKEN), on loopback, too: another user of the
// host, or a web page in a browser there, could evict otherwise.
#ifndef WEFT_TOOLS_DRIVER_PAGE_H_
#define WEFT_TOOLS_DRIVER_PAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/driver/driver.h"
#include "tools/observe/http.h"

namespace weft::driver {

// The token in `file`, or a new one, which is written there for its owner alone where the file is
// missing or empty; a pipe or a device is only read. Drivers that start at the same time, on any
// hosts whose file system shares its locks, return the same one. Unavailable where another process
// has the empty file locked for `patience`: that one writes the token, or hangs.
absl::StatusOr<std::string> PageToken(const std::string& file,
                                      absl::Duration patience = absl::Seconds(10));

// The options of a server of the page at `address`.
observe::HttpServerOptions PageServer(const observe::HttpAddress& address, std::string token);

// {"incarnation", "started", "outcome", "restarts", "nodes": [...], "hosts": [...], "ranks": [...],
// "notices": [...], "history": [...]}; times in seconds since 1970 and ages in seconds.
std::string JobJson(const Driver& driver, absl::Time now);

// `said`: what was decided because of the request.
observe::HttpResponse Answer(Driver& driver, const observe::HttpRequest& request, absl::Time now,
                             std::vector<recovery::Action>& said);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_PAGE_H_
