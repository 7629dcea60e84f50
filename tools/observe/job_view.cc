#include "tools/observe/job_view.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/settings.h"

namespace weft::observe {

double StepTimes::waiting() const {
  double sum = 0;
  for (const auto& [name, took] : seconds) {
    if (absl::StartsWith(name, "wait")) sum += took;
  }
  return sum;
}

bool RankView::ended_well() const {
  const bool exited = process.reaped_ns != 0 && process.wait_status == 0;
  return !process.failed && (process.ended_ns != 0 || exited);
}

bool RankView::blocked() const {
  return !open.empty() && !ended_well() &&
         (process.phase.empty() || absl::StartsWith(process.phase, "wait"));
}

void Reading::Take(double value, int64_t time_ns) {
  if (!std::exchange(known, true)) {
    first = last = value;
    changed_ns = time_ns;
  } else if (value != last) {
    last = value;
    changed_ns = time_ns;
  }
}

const Reading* RankView::FindReading(absl::string_view source, absl::string_view name) const {
  const auto found = readings.find({std::string(source), std::string(name)});
  return found == readings.end() ? nullptr : &found->second;
}

std::vector<int> ParseRanks(absl::string_view text, int world_size) {
  std::vector<int> ranks;
  world_size = std::min(world_size, 1 << 20);
  for (absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends[0], &first)) continue;
    if (!absl::SimpleAtoi(ends.back(), &last)) continue;
    for (int rank = std::max(first, 0); rank <= last && rank < world_size; ++rank) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string RanksText(const std::vector<int>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    absl::StrAppend(&out, out.empty() ? "" : ",", ranks[i]);
    if (end - i > 1) absl::StrAppend(&out, end - i == 2 ? "," : "-", ranks[end - 1]);
    i = end;
  }
  return out;
}

void Members::Take(const std::vector<std::string>& words, int rank, int world_size) {
  int index = 0;
  if (words.size() < 3) return;
  if (words[0] == "member" && absl::SimpleAtoi(words[2].substr(0, words[2].find(' ')), &index)) {
    if (index < 0) return;
    numbered_.insert(words[1]);
    ranks_[words[1]][index] = rank;
  } else if (words[0] == "group") {
    const std::vector<int> ranks = ParseRanks(words[2], world_size);
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    if (own != ranks.end()) ranks_[words[1]][static_cast<int>(own - ranks.begin())] = rank;
  }
}

int Members::RankOf(const std::string& group, int index) const {
  if (!Has(group)) return index;
  const auto& ranks = ranks_.at(group);
  const auto found = ranks.find(index);
  return found == ranks.end() ? -1 : found->second;
}

std::map<std::string, std::vector<int>> Members::groups() const {
  std::map<std::string, std::vector<int>> out;
  for (const std::string& group : numbered_) {
    for (const auto& [index, rank] : ranks_.at(group)) out[group].push_back(rank);
  }
  return out;
}

// ---- One ring

namespace {

// A program that only looks takes no offence at other words of its environment.
std::string ExporterOfEnvironment() {
  Settings settings{LibrarySettings()};
  const absl::Status status = settings.SetFromEnvironment(/*strict=*/false);
  if (!status.ok()) WEFT_LOG_WARN(status.message());
  return settings.Text("records.dcgm_exporter");
}

template <typename T>
T Shifted(T record, int64_t shift_ns) {
  if (record.start_ns != 0) record.start_ns += shift_ns;
  if (record.end_ns != 0) record.end_ns += shift_ns;
  return record;
}

void Shift(int64_t& time_ns, int64_t shift_ns) {
  if (time_ns != 0) time_ns += shift_ns;
}

// All flows between two ranks as one; `newest` is one of them.
FlowRecord Sum(const std::map<std::string, FlowRecord>& parts, const FlowRecord& newest) {
  if (parts.size() == 1) return newest;
  FlowRecord sum = newest;
  uint64_t outstanding = 0, waiting = 0;
  sum.stuck_ms = sum.repeats = 0;
  sum.bytes_matched = sum.bytes_transmitted = sum.bytes_done = 0;
  for (const auto& [group, part] : parts) {
    outstanding += part.outstanding;
    waiting += part.waiting;
    if (part.outstanding > 0) sum.stuck_ms = std::max(sum.stuck_ms, part.stuck_ms);
    sum.rtt_us = std::max(sum.rtt_us, part.rtt_us);
    sum.repeats += part.repeats;
    sum.bytes_matched += part.bytes_matched;
    sum.bytes_transmitted += part.bytes_transmitted;
    sum.bytes_done += part.bytes_done;
  }
  sum.outstanding = static_cast<uint16_t>(std::min<uint64_t>(outstanding, UINT16_MAX));
  sum.waiting = static_cast<uint16_t>(std::min<uint64_t>(waiting, UINT16_MAX));
  return sum;
}

}  // namespace

void RankReader::Update(RankView* view, Sink sink, void* context) {
  const uint64_t lost_before = reader_->lost();
  const std::vector<Record> records = reader_->Read();
  // The ends of calls that were open may be among the lost records; a call that is under way still
  // is among those that follow, or does not hold up its rank.
  if (reader_->lost() != lost_before) view->open.clear();
  for (const Record& record : records) {
    switch (record.kind()) {
      case RecordKind::kCall:
      case RecordKind::kDone:
        TakeCall(Shifted(record.As<CallRecord>(), shift_ns_), record.kind() == RecordKind::kDone,
                 view);
        break;
      case RecordKind::kFlow: {
        auto flow = record.As<FlowRecord>();
        Shift(flow.time_ns, shift_ns_);
        TakeFlow(flow, view);
        break;
      }
      case RecordKind::kPhase: {
        const PhaseRecord phase = Shifted(record.As<PhaseRecord>(), shift_ns_);
        TakePhase(phase, view);
        view->moved_ns = std::max(view->moved_ns, phase.end_ns);
        break;
      }
      case RecordKind::kStep:
        TakeStep(Shifted(record.As<StepRecord>(), shift_ns_), view);
        break;
      case RecordKind::kNone:
        break;
    }
    if (sink != nullptr) sink(context, *reader_, record);
  }
  view->process = reader_->process();
  for (int64_t* time_ns : {&view->process.alive_ns, &view->process.ended_ns,
                           &view->process.phase_since_ns, &view->process.monotonic_ns}) {
    Shift(*time_ns, shift_ns_);
  }
  TakeLines(view);
  view->path = reader_->path();
  view->written = reader_->written();
  view->lost = reader_->lost();
}

void RankReader::TakeFlow(FlowRecord record, RankView* view) {
  constexpr double kNew = 0.1;  // weight of the newest sample
  // "nccl GROUP": a communicator's, which numbers its members itself.
  const std::vector<std::string> name =
      absl::StrSplit(reader_->Name(record.name), absl::MaxSplits(' ', 1));
  const std::string group = name.size() > 1 ? name[1] : "";
  if (members_ != nullptr && !group.empty()) record.peer = members_->RankOf(group, record.peer);
  if (record.peer < 0) return;
  const std::pair<int, bool> key(record.peer, record.sends != 0);
  std::map<std::string, FlowRecord>& parts = flows_[key];
  parts[group] = record;
  Flow& flow = view->flows[key];
  if (flow.transport.empty() || !group.empty()) flow.transport = name[0];
  flow.record = Sum(parts, record);
  if (flow.samples == 0) flow.repeats_before = flow.record.repeats;
  if (flow.record.rtt_us > 0) {
    flow.rtt_us += (flow.rtt_us == 0 ? 1 : kNew) * (flow.record.rtt_us - flow.rtt_us);
  }
  ++flow.samples;
  const bool busy = record.bytes_matched > record.bytes_done;
  flow.busy = (1 - kNew) * flow.busy + kNew * (busy ? 1 : 0);
}

void RankReader::TakeCall(CallRecord record, bool done, RankView* view) {
  Call call{reader_->Name(record.name), reader_->Name(record.group), record};
  if (members_ != nullptr && record.peer >= 0) {
    record.peer = call.record.peer = members_->RankOf(call.group, record.peer);
  }
  const auto is_it = [&](const Call& open) {
    return open.record.start_ns == record.start_ns && open.record.sequence == record.sequence &&
           open.record.name == record.name && open.record.group == record.group;
  };
  if (!call.is_message()) {
    std::deque<Call>& calls = view->calls[call.group];
    const auto known = std::find_if(calls.rbegin(), calls.rend(), is_it);
    if (known != calls.rend()) {
      *known = call;
    } else {
      calls.push_back(call);
      if (calls.size() > RankView::kCallsMax) calls.pop_front();
    }
    uint32_t& next = view->next[call.group];
    next = std::max(next, record.sequence + 1);
  }
  const auto open = std::find_if(view->open.begin(), view->open.end(), is_it);
  if (done) {
    view->moved_ns = std::max(view->moved_ns, record.end_ns);
    if (record.code == static_cast<uint8_t>(absl::StatusCode::kDataLoss) && record.peer >= 0 &&
        view->corrupt.size() < RankView::kStepsMax) {
      view->corrupt.push_back({reader_->Name(record.name), reader_->Name(record.group), record});
    }
    if (open != view->open.end()) view->open.erase(open);
  } else if (open == view->open.end()) {
    view->moved_ns = std::max(view->moved_ns, record.start_ns);
    view->open.push_back(std::move(call));
  }
}

// Phases end before the ones that they are in.
void RankReader::TakePhase(const PhaseRecord& record, RankView* view) {
  const std::string name = reader_->Name(record.name);
  ++view->phases_in_step;
  if (name == "replica_check") {
    view->checksums[record.step] = record.spare[0];
    if (view->checksums.size() > RankView::kStepsMax) {
      view->checksums.erase(view->checksums.begin());
    }
  } else if (record.spare[0] != 0) {
    work_[name] += static_cast<double>(record.spare[0]);
  }
  double within = 0;
  while (!spans_.empty() && spans_.back().start_ns >= record.start_ns) {
    within += static_cast<double>(spans_.back().end_ns - spans_.back().start_ns) * 1e-9;
    spans_.pop_back();
  }
  const double took = static_cast<double>(record.end_ns - record.start_ns) * 1e-9;
  seconds_[name] += std::max(0.0, took - within);
  spans_.push_back({name, record.start_ns, record.end_ns});
}

void RankReader::TakeStep(const StepRecord& record, RankView* view) {
  StepTimes times{.step = record.step,
                  .start_ns = record.start_ns,
                  .end_ns = record.end_ns,
                  .loss = record.loss,
                  .tokens = record.tokens,
                  .own_is_finite = record.spare == 0,
                  .seconds = std::exchange(seconds_, {}),
                  .work = std::exchange(work_, {})};
  view->phases_of_last_step = std::exchange(view->phases_in_step, 0);
  spans_.clear();
  view->moved_ns = std::max(view->moved_ns, record.end_ns);
  view->steps.push_back(std::move(times));
  if (view->steps.size() > RankView::kStepsMax) view->steps.pop_front();
}

void RankReader::TakeLines(RankView* view) {
  const std::vector<std::string>& lines = view->process.lines;
  for (; lines_taken_ < lines.size(); ++lines_taken_) {
    const std::string& line = lines[lines_taken_];
    int64_t time_ns = 0;
    if (absl::StartsWith(line, "host ")) {
      host_ = line.substr(5);
    } else if (absl::StartsWith(line, "reading ")) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      double value = 0;
      if (words.size() != 5 || !absl::SimpleAtoi(words[1], &time_ns) ||
          !absl::SimpleAtod(words[4], &value)) {
        continue;
      }
      Shift(time_ns, shift_ns_);
      view->readings[{words[2], words[3]}].Take(value, time_ns);
    } else if (absl::StartsWith(line, "error ")) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 5));
      ToldError error;
      if (words.size() != 6 || !absl::SimpleAtoi(words[1], &error.time_ns) ||
          !absl::SimpleAtoi(words[2], &error.step)) {
        continue;
      }
      Shift(error.time_ns, shift_ns_);
      error.code = words[3], error.place = words[4], error.text = words[5];
      view->errors.push_back(std::move(error));
    }
  }
  if (!host_.empty()) view->process.host = host_;
}

// ---- A folder

// Programs that join a job beside others put their own name after a '/'.
std::string JobOf(const RecordProcess& process) {
  return process.job.substr(0, process.job.find('/'));
}

std::map<std::string, JobInFolder> JobsIn(const std::string& folder,
                                          const std::map<std::string, JobWatch::Told>& told) {
  std::map<std::string, JobInFolder> jobs;
  for (const std::string& path : RecordFilesIn(folder)) {
    auto reader = RecordReader::Open(path);
    if (!reader.ok()) continue;
    const RecordProcess process = (*reader)->process();
    JobInFolder& job = jobs[JobOf(process)];
    job.began_ns = std::max(job.began_ns, process.realtime_ns);
    const auto known = told.find(path);
    const ProcessState state = known != told.end()
                                   ? known->second.state
                                   : ReadProcessState(process.pid, process.process_start);
    job.alive |= process.ended_ns == 0 && state.known && !state.gone();
  }
  return jobs;
}

// Rings of one host, or of one whose clock was compared when they were fetched, need none, even
// where that host's wall clock was set meanwhile; of others the wall clocks are all that is known.
int64_t JobWatch::ShiftOf(const std::string& path, const RecordProcess& process) {
  if (const auto told = told_.find(path); told != told_.end()) return told->second.shift_ns;
  constexpr int64_t kSameHostNs = 1'000'000'000;
  const int64_t base_ns = process.realtime_ns - process.monotonic_ns;
  if (base_ns_ == 0) base_ns_ = base_ns, base_host_ = process.host;
  if (process.host == base_host_ && !process.host.empty()) return 0;
  const int64_t shift_ns = base_ns - base_ns_;
  return std::abs(shift_ns) < kSameHostNs ? 0 : shift_ns;
}

// Whether the ring at `path` is of a later process of its rank than the one that is `known`. Wall
// clocks, which may differ or have been set meanwhile, decide where nothing else tells.
bool JobWatch::IsLater(const std::string& path, const RecordProcess& process, int64_t shift_ns,
                       const RankView& known) const {
  if (told_.count(path) != 0 && told_.count(known.path) != 0) {
    return process.monotonic_ns + shift_ns >= known.process.monotonic_ns;
  }
  const auto is_there = [](const RecordProcess& one) {
    return ProcessStart(one.pid) == one.process_start;
  };
  if (is_there(process) != is_there(known.process)) return is_there(process);
  const bool was_followed = followed_.count(path) != 0 && !is_there(process);
  return !was_followed && process.realtime_ns >= known.process.realtime_ns;
}

JobWatch::JobWatch(std::string folder, std::string job)
    : folder_(std::move(folder)), job_(std::move(job)), host_("", ExporterOfEnvironment()) {}

void JobWatch::ChooseJob(bool live) {
  const std::map<std::string, JobInFolder> jobs = JobsIn(folder_, told_);
  const auto rank_of = [live](const JobInFolder& job) {
    return std::pair(live && job.alive, job.began_ns);
  };
  const JobInFolder* best = nullptr;
  for (const auto& [name, job] : jobs) {
    if (best == nullptr || rank_of(job) >= rank_of(*best)) best = &job, job_ = name;
  }
  view_.other_jobs.clear();
  for (const auto& [name, job] : jobs) {
    if (live && job.alive && name != job_) view_.other_jobs.push_back(name);
  }
}

void JobWatch::FindRings() {
  unreadable_ = 0;
  for (const std::string& path : RecordFilesIn(folder_)) {
    if (readers_.count(path) != 0) continue;
    auto reader = RecordReader::Open(path);
    if (!reader.ok()) {
      ++unreadable_;
      continue;
    }
    const RecordProcess process = (*reader)->process();
    if (JobOf(process) != job_) continue;
    chosen_ = true;
    const int64_t shift_ns = ShiftOf(path, process);
    // A rank that was started again, or a job of the same name: the newest process counts.
    if (const auto known = view_.ranks.find(process.rank); known != view_.ranks.end()) {
      if (!IsLater(path, process, shift_ns, known->second)) continue;
      followed_.insert(known->second.path);
      readers_.erase(known->second.path);
      view_.ranks.erase(known);
    }
    rank_of_[path] = process.rank;
    RankView& rank = view_.ranks[process.rank];
    rank.path = path;
    rank.process = process;
    Shift(rank.process.monotonic_ns, shift_ns);
    readers_.emplace(path, RankReader(*std::move(reader), shift_ns));
  }
}

// Drops processes that were over before another of the job began: they are of an earlier run of the
// same name.
void JobWatch::DropEarlierRuns() {
  int64_t began_ns = 0;
  bool all_live = true;
  for (const auto& [number, rank] : view_.ranks) {
    began_ns = std::max(began_ns, rank.process.monotonic_ns);
    all_live &= rank.state.known && !rank.state.gone();
  }
  if (all_live) {
    for (const auto& [number, rank] : view_.ranks) together_.insert(rank.path);
  }
  for (auto rank = view_.ranks.begin(); rank != view_.ranks.end();) {
    const RecordProcess& process = rank->second.process;
    const int64_t last_ns =
        std::max({process.monotonic_ns, process.alive_ns, rank->second.moved_ns});
    const bool over = !rank->second.state.known || rank->second.state.gone();
    const bool met = together_.count(rank->second.path) != 0;
    rank = over && !met && last_ns < began_ns ? view_.ranks.erase(rank) : std::next(rank);
  }
}

// What the processes say of their job.
void JobWatch::ReadLines() {
  view_.world_size = 0;
  view_.groups.clear();
  view_.members = {};
  for (const auto& [number, rank] : view_.ranks) {
    view_.world_size = std::max(view_.world_size, rank.process.world_size);
    for (const std::string& line : rank.process.lines) {
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
      view_.members.Take(words, number, rank.process.world_size);
      if (words.size() == 3 && words[0] == "group" && view_.groups.count(words[1]) == 0) {
        view_.groups[words[1]] = ParseRanks(words[2], rank.process.world_size);
      } else if (words.size() == 2 && words[0] == "mesh") {
        view_.mesh = words[1];
      }
    }
  }
  for (auto& [group, ranks] : view_.members.groups()) view_.groups[group] = std::move(ranks);
}

// Takes readings of ranks here from this host; of ranks elsewhere, what their agent said.
void JobWatch::TakeReadings(int64_t now_ns) {
  constexpr int64_t kPeriodNs = 500'000'000;
  const bool is_due = now_ns - readings_at_ns_ >= kPeriodNs;
  std::vector<RankView*> here;
  for (auto& [number, rank] : view_.ranks) {
    const auto told = told_.find(rank.path);
    if (told == told_.end()) {
      here.push_back(&rank);
      continue;
    }
    for (const auto& [key, reading] : told->second.readings) rank.readings[key] = reading;
  }
  if (!is_due) return;
  readings_at_ns_ = now_ns;
  if (!here.empty()) host_.Take(here, now_ns);
}

void JobWatch::Update(bool live, int64_t now_ns) {
  if (!chosen_ && job_.empty()) ChooseJob(live);
  FindRings();
  for (const auto& [path, reader] : readers_) {
    const auto known = view_.ranks.find(rank_of_[path]);
    if (known != view_.ranks.end() && known->second.path == path) {
      known->second.process.lines = reader.reader().process().lines;
    }
  }
  ReadLines();  // by which records are understood
  int64_t last_ns = 0;
  for (auto& [path, reader] : readers_) {
    const auto known = view_.ranks.find(rank_of_[path]);
    const bool current = known != view_.ranks.end() && known->second.path == path;
    if (!current) continue;  // of an earlier run
    RankView& rank = known->second;
    reader.set_members(&view_.members);
    reader.Update(&rank);
    if (const auto told = told_.find(path); told != told_.end()) {
      rank.state = told->second.state;
    } else if (live) {
      const double waited = rank.state.run_queue_seconds;  // threads that have ended count on
      rank.state = ReadProcessState(rank.process.pid, rank.process.process_start);
      rank.state.run_queue_seconds = std::max(rank.state.run_queue_seconds, waited);
    }
    last_ns = std::max({last_ns, rank.moved_ns, rank.process.alive_ns, rank.process.ended_ns});
  }
  if (live) TakeReadings(now_ns);
  DropEarlierRuns();
  ReadLines();
  view_.job = job_;
  view_.now_ns = live ? now_ns : last_ns;
}

}  // namespace weft::observe
