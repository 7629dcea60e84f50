#include "tools/driver/host_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::driver {
namespace {

// How long one call watches before it is made again.
constexpr absl::Duration kWatchPatience = absl::Minutes(1);

}  // namespace

HostLink::HostLink(collectives::StoreClient* store, std::string host, absl::Duration period)
    : store_(store),
      host_(std::move(host)),
      period_(period),
      own_(store, ReportKey(host_)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      contact_(SystemClock().Now()) {}

absl::StatusOr<std::unique_ptr<HostLink>> HostLink::Join(collectives::StoreClient* store,
                                                         const std::string& host,
                                                         absl::Duration period) {
  std::unique_ptr<HostLink> link(new HostLink(store, host, period));
  if (!link->wake_) return ErrnoStatus(errno, "eventfd");
  WEFT_RETURN_IF_ERROR(link->Begin());
  link->beats_ = std::thread([&self = *link] { self.Beat(); });
  link->watches_ = std::thread([&self = *link] { self.Watch(); });
  return link;
}

HostLink::~HostLink() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (const auto which : {collectives::StoreWaits::kWatches, collectives::StoreWaits::kOthers}) {
    store_->RefuseWaits(which, absl::CancelledError("the executor ends"));
  }
  if (beats_.joinable()) beats_.join();
  if (watches_.joinable()) watches_.join();
}

// The first report, in the place of an earlier executor's last.
absl::Status HostLink::Begin() {
  report_.pid = getpid();
  report_.writer = own_.token();
  WEFT_RETURN_IF_ERROR(own_.Take([this](absl::string_view before) -> absl::StatusOr<std::string> {
    report_.incarnation = 1;
    if (!before.empty()) {
      WEFT_ASSIGN_OR_RETURN(const HostReport earlier, ParseHostReport(before));
      report_.incarnation = earlier.incarnation + 1;
    }
    return ToJson(report_);
  }));
  incarnation_ = report_.incarnation;
  // An earlier executor may have left a report and died before it wrote the name.
  return store_->Append(kHostsKey, absl::StrCat(host_, "\n"));
}

void HostLink::Beat() {
  int64_t beat = 0;
  while (true) {
    HostReport report;
    int64_t telling = 0;
    bool urgent = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoMilliseconds(period_),
                        [this] { return stop_ || urgent_; });
      if (stop_ && arrived_ == told_) return;
      if (!status_.ok()) return;
      report = report_;
      telling = told_;
      urgent = std::exchange(urgent_, false);
    }
    const bool is_last = report.over;
    report.incarnation = incarnation_;
    report.writer = own_.token();
    report.pid = getpid();
    report.beat = ++beat;
    const absl::Time sent = SystemClock().Now();
    const absl::Status status = Send(report, urgent);
    std::unique_lock<std::mutex> lock(mutex_);
    if (status.ok()) {
      arrived_ = telling;
      contact_ = sent;
      changed_.notify_all();
      // The driver, and with it the store, may be gone from here.
      if (is_last && arrived_ == told_) return;
    } else if (stop_) {
      return;
    } else if (!absl::IsDeadlineExceeded(status)) {
      lock.unlock();
      return Fail(status);
    } else {
      urgent_ = urgent_ || urgent;  // the bell may not have been rung
    }
  }
}

absl::Status HostLink::Send(const HostReport& report, bool urgent) {
  std::string other;
  const absl::Status written = own_.ReplaceAny(ToJson(report), &other);
  if (absl::IsAborted(written)) {
    return absl::AbortedError(absl::StrCat("another executor has joined as ", host_));
  }
  WEFT_RETURN_IF_ERROR(written);
  return urgent ? store_->Add(kBellKey, 1).status() : absl::OkStatus();
}

void HostLink::Watch() {
  int64_t version = 0;
  while (true) {
    auto watched = store_->Watch(kStateKey, version, kWatchPatience);
    if (absl::IsDeadlineExceeded(watched.status())) continue;
    if (!watched.ok()) return Fail(watched.status());
    version = watched->version;
    if (!watched->value.has_value()) continue;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      record_ = *std::move(watched->value);
    }
    Wake();
  }
}

void HostLink::Fail(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok() && !stop_) status_ = status;
  }
  changed_.notify_all();
  Wake();
}

void HostLink::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

std::optional<DriverRecord> HostLink::Take() {
  uint64_t count = 0;
  (void)!read(wake_.get(), &count, sizeof(count));
  std::optional<std::string> text;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    text = std::exchange(record_, std::nullopt);
  }
  if (!text.has_value()) return std::nullopt;
  absl::StatusOr<DriverRecord> record = ParseDriverRecord(*text);
  if (record.ok()) return *std::move(record);
  Fail(record.status());
  return std::nullopt;
}

void HostLink::Tell(HostReport report, bool urgent) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    report_ = std::move(report);
    ++told_;
    urgent_ = urgent_ || urgent;
  }
  if (urgent) changed_.notify_all();
}

bool HostLink::Flush(absl::Duration patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  urgent_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, absl::ToChronoMilliseconds(patience),
                    [this] { return arrived_ == told_ || !status_.ok(); });
  return arrived_ == told_;
}

absl::Time HostLink::contact() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return contact_;
}

absl::Status HostLink::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

}  // namespace weft::driver
