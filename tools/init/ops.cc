#include "tools/init/ops.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "net/secret.h"
#include "tools/init/client.h"
#include "tools/init/measure.h"
#include "tools/init/measured_store.h"

namespace weft::init {
namespace {

constexpr size_t kValueBytes = 64;

// Connections that stay for all cases of their number.
class Load {
 public:
  Load(const Options& options, const StoreProcess& store, const net::JobSecret& secret)
      : options_(options), store_(store), secret_(secret) {}

  absl::Status Connect(int connections) {
    WEFT_ASSIGN_OR_RETURN(poller_, Poller::Create());
    WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort(store_.address()));
    int due = connections;
    for (int i = 0; i < connections; ++i) {
      ClientSetup setup;
      setup.poller = poller_.get();
      setup.link.address = store_.address();
      setup.server = addresses[0];
      setup.timeout = options_.timeout;
      setup.secret = secret_;
      setup.rank = i;
      setup.host = "host0";
      auto client = options_.store->MakeClient(setup);
      client->Start([&](const absl::Status& status) {
        if (status_.ok()) status_ = status;
        --due;
      });
      streams_.push_back({std::move(client), absl::StrCat("ops/", i)});
    }
    WEFT_RETURN_IF_ERROR(Until([&] { return due == 0; }));
    due = connections;
    for (Stream& stream : streams_) {  // what is got must be there
      stream.client->Set(absl::StrCat(stream.key, "/get"), value_,
                         [&](const absl::Status& status, int64_t) {
                           if (status_.ok()) status_ = status;
                           --due;
                         });
    }
    return Until([&] { return due == 0; });
  }

  absl::StatusOr<OpsResult> Run(const std::string& op, int depth) {
    op_ = op;
    depth_ = depth;
    latencies_.clear();
    WEFT_RETURN_IF_ERROR(For(options_.op_time / 5));  // warm
    latencies_.clear();
    int64_t messages = Messages();
    ServerCalls before = store_.calls();
    double cpu = store_.cpu_seconds();
    int64_t begin = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(For(options_.op_time));
    double seconds = static_cast<double>(SystemClock::Nanoseconds() - begin) * 1e-9;
    OpsResult result;
    result.op = op;
    result.connections = static_cast<int>(streams_.size());
    result.depth = depth;
    result.operations = static_cast<int64_t>(latencies_.size());
    auto count = static_cast<double>(latencies_.size());
    result.per_second = count / seconds;
    result.messages = static_cast<double>(Messages() - messages) / count;
    result.server_cpu = cpu < 0 ? -1 : (store_.cpu_seconds() - cpu) / count;
    ServerCalls after = store_.calls();
    if (after.reads >= 0 && after.writes >= 0) {
      result.reads_and_writes = (after.reads - before.reads + after.writes - before.writes) / count;
    }
    if (after.waits >= 0) result.waits = (after.waits - before.waits) / count;
    std::sort(latencies_.begin(), latencies_.end());
    result.p50 = latencies_[latencies_.size() / 2] * 1e-9;
    result.p99 = latencies_[(latencies_.size() - 1) * 99 / 100] * 1e-9;
    return result;
  }

 private:
  struct Stream {
    std::unique_ptr<Client> client;
    std::string key;
  };

  int64_t Messages() const {
    int64_t sum = 0;
    for (const Stream& stream : streams_) sum += stream.client->sent() + stream.client->received();
    return sum;
  }

  // DeadlineExceeded: not within the timeout after `working`, in which there is always more to do.
  template <typename Condition>
  absl::Status Until(Condition met, absl::Duration working = absl::ZeroDuration()) {
    absl::Time deadline = SystemClock().Now() + working + options_.timeout;
    while (!met() && status_.ok()) {
      poller_->Sleep(poller_->now() + absl::Milliseconds(10));
      if (poller_->now() > deadline)
        return absl::DeadlineExceededError("the store does not answer");
    }
    return status_;
  }

  // Every answer is followed by another request until the time is over; then all are awaited.
  absl::Status For(absl::Duration time) {
    poller_->SetNow(SystemClock().Now());
    end_ = poller_->now() + time;
    for (Stream& stream : streams_) {
      for (int i = 0; i < depth_; ++i) Issue(stream);
    }
    return Until([this] { return under_way_ == 0; }, time);
  }

  void Issue(Stream& stream) {
    ++under_way_;
    auto done = [this, &stream, begin = SystemClock::Nanoseconds()](const absl::Status& status,
                                                                    int64_t) {
      --under_way_;
      latencies_.push_back(static_cast<double>(SystemClock::Nanoseconds() - begin));
      if (!status.ok()) {
        if (status_.ok()) status_ = status;
      } else if (poller_->now() < end_) {
        Issue(stream);
      }
    };
    if (op_ == "set") {
      stream.client->Set(stream.key, value_, done);
    } else if (op_ == "add") {
      stream.client->Add(absl::StrCat(stream.key, "/add"), 1, done);
    } else if (depth_ == 1) {
      stream.client->Get(absl::StrCat(stream.key, "/get"), done);
    } else {
      stream.client->GetPresent(absl::StrCat(stream.key, "/get"), done);
    }
  }

  const Options& options_;
  const StoreProcess& store_;
  const net::JobSecret secret_;
  const std::string value_ = std::string(kValueBytes, 'v');
  std::unique_ptr<Poller> poller_;
  std::vector<Stream> streams_;
  std::string op_;
  int depth_ = 1;
  absl::Time end_;
  int64_t under_way_ = 0;
  std::vector<double> latencies_;  // nanoseconds
  absl::Status status_;
};

}  // namespace

absl::StatusOr<OpsMeasurement> MeasureOps(const Options& options,
                                          const std::function<void(const std::string&)>& say) {
  int64_t limit = RaiseOpenFilesLimit();
  for (int connections : options.op_connections) {
    if (2 * connections + 64 <= limit) continue;
    return absl::ResourceExhaustedError(absl::StrCat("--connections ", connections, " need ",
                                                     2 * connections + 64,
                                                     " file descriptors and this process may have ",
                                                     limit, ": raise the hard limit (ulimit -Hn)"));
  }
  net::JobSecret secret = net::NewJobSecret();
  WEFT_ASSIGN_OR_RETURN(
      auto store,
      options.store->Start(
          *std::max_element(options.op_connections.begin(), options.op_connections.end()), secret));
  OpsMeasurement m;
  m.note = store->note();
  for (int connections : options.op_connections) {
    Load load(options, *store, secret);
    WEFT_RETURN_IF_ERROR(load.Connect(connections));
    for (int depth : options.op_depths) {
      for (const char* op : {"set", "get", "add"}) {
        say(absl::StrCat(connections, " connections, ", depth, " under way on each: ", op));
        WEFT_ASSIGN_OR_RETURN(OpsResult result, load.Run(op, depth));
        m.rows.push_back(result);
      }
    }
  }
  return m;
}

}  // namespace weft::init
