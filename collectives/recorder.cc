#include "collectives/recorder.h"

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
  if (code != absl::StatusCode::kOk && code != absl::StatusCode::kCancelled) MarkFailed();
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

void Recorder::SampleLink(const net::Link* link, bool sends, const Peer& peer,
                          net::FlowWatch& watch, int64_t now_ns) {
  FlowRecord record;
  if (link == nullptr || !watch.Sample(link->Counters(), now_ns, &record)) return;
  record.sends = sends ? 1 : 0;
  record.name = transports_[static_cast<size_t>(peer.transport)];
  record.peer = peer.rank.value();
  records_->Write(record);
}

}  // namespace weft::collectives
