#include "collectives/recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

constexpr int64_t kSamplePeriodNs = 100'000'000;

// "0-3 8 12-15": ranks that follow each other are joined.
std::string RankText(const std::vector<Rank>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end].value() == ranks[end - 1].value() + 1) ++end;
    absl::StrAppend(&out, out.empty() ? "" : " ", ranks[i].value());
    if (end - i > 1) absl::StrAppend(&out, "-", ranks[end - 1].value());
    i = end;
  }
  return out;
}

uint16_t AtMost16(uint64_t value) {
  return static_cast<uint16_t>(std::min<uint64_t>(value, 65535));
}

uint32_t AtMost32(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, UINT32_MAX));
}

}  // namespace

Recorder::Recorder(const Settings& settings, absl::string_view job, int rank, int world_size)
    : records_(Records::FromSettings(settings, job, rank, world_size)) {
  if (records_ == nullptr) return;
  for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
    calls_[static_cast<size_t>(kind)] = records_->Name(ToString(static_cast<CollectiveKind>(kind)));
  }
  calls_[kSendName] = records_->Name("send");
  calls_[kReceiveName] = records_->Name("receive");
}

void Recorder::OnGroup(Group& group) {
  if (records_ == nullptr) return;
  group.record_name = records_->Name(group.name);
  records_->Say(absl::StrCat("group ", group.name, " ", RankText(group.ranks)));
}

CallRecord Recorder::RecordOf(const Operation& operation) const {
  CallRecord record = operation.ToRecord();
  record.name = calls_[record.name];
  record.group = const_cast<Operation&>(operation).group().record_name;
  record.start_ns = operation.start_ns();
  return record;
}

void Recorder::OnCall(const Operation& operation) {
  if (records_ != nullptr) records_->Write(RecordOf(operation));
}

void Recorder::OnDone(const Operation& operation, int64_t end_ns, absl::StatusCode code) {
  if (records_ == nullptr) return;
  CallRecord record = RecordOf(operation);
  record.kind = RecordKind::kDone;
  record.code = static_cast<uint8_t>(code);
  record.end_ns = end_ns;
  if (code != absl::StatusCode::kOk && code != absl::StatusCode::kCancelled) records_->MarkFailed();
  records_->Write(record);
}

void Recorder::Sample(std::vector<Peer>& peers,
                      absl::Span<const std::unique_ptr<net::Transport>> transports,
                      int64_t now_ns) {
  if (records_ == nullptr || now_ns < sample_ns_) return;
  sample_ns_ = now_ns + kSamplePeriodNs;
  records_->SetAlive(now_ns);
  for (size_t t = 0; t < transports.size() && t < kTransportsMax; ++t) {
    if (transports[t] != nullptr && transports_[t] == 0) {
      transports_[t] = records_->Name(net::ToString(transports[t]->kind()));
    }
  }
  for (Peer& peer : peers) {
    SampleLink(peer.send.get(), true, peer, peer.send_watch, now_ns);
    SampleLink(peer.receive.get(), false, peer, peer.receive_watch, now_ns);
  }
}

// What has changed; and what stands still, ever less often.
void Recorder::SampleLink(const net::Link* link, bool sends, const Peer& peer, LinkWatch& watch,
                          int64_t now_ns) {
  if (link == nullptr) return;
  const net::FlowCounters counters = link->Counters();
  const bool changed = watch.progress.Update(counters, now_ns);
  const int64_t stuck_ns = watch.progress.stuck_ns(now_ns);
  const bool due = stuck_ns > 0 && now_ns - watch.written_ns >= stuck_ns / 4;
  if (!changed && !due) return;
  watch.written_ns = now_ns;
  FlowRecord record;
  record.sends = sends ? 1 : 0;
  record.name = transports_[static_cast<size_t>(peer.transport)];
  record.peer = peer.rank.value();
  record.time_ns = now_ns;
  record.stuck_ms = AtMost32(stuck_ns / 1'000'000);
  record.rtt_us = AtMost32(counters.rtt_ns / 1000);
  record.outstanding = AtMost16(counters.outstanding());
  record.waiting = AtMost16(counters.waiting_for_peer());
  record.repeats = AtMost32(static_cast<int64_t>(counters.repeats));
  record.bytes_matched = counters.bytes_matched;
  record.bytes_transmitted = counters.bytes_transmitted;
  record.bytes_done = counters.bytes_done;
  records_->Write(record);
}

}  // namespace weft::collectives
