#include "collectives/store/relay/store_relay_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "base/status.h"
#include "collectives/store/protocol/store_exchange.h"

namespace weft::collectives {
namespace {

// Whether an error may be one rank's alone, so that the others deserve to be asked for without it.
bool OneRanksFault(absl::StatusCode code) {
  return code == absl::StatusCode::kAlreadyExists || code == absl::StatusCode::kInvalidArgument ||
         code == absl::StatusCode::kAborted;
}

// What one client wants of the values that an exchange was answered with.
StoreReply Part(const absl::StatusOr<std::vector<absl::string_view>>& values, int32_t size,
                const RankSet& wanted) {
  auto own = values.ok() ? PickExchanged(*values, size, wanted) : values.status();
  if (own.ok()) return EncodeExchanged(wanted, *own);
  StoreReply reply;
  reply.status = own.status();
  return reply;
}

}  // namespace

StoreRelayTable::StoreRelayTable(StoreClientCore* up, StoreRelayTableOptions options)
    : up_(up), options_(std::move(options)) {
  up_->set_sink([this](uint64_t id, size_t total, size_t offset, absl::string_view bytes) {
    Sink(id, total, offset, bytes);
  });
}

void StoreRelayTable::Execute(StoreTicket ticket, StoreRequest&& request, absl::Time now) {
  if (IsGroup(request.op)) return Enter(ticket, std::move(request), now);
  StoreOp op = request.op;
  uint64_t id = up_->Call(std::move(request));
  forwarded_[ticket] = id;
  asked_.emplace(id, Asked{ticket, op, {}, {}});
}

void StoreRelayTable::Announce(const StoreHello& hello) {
  StoreRequest request;
  request.op = StoreOp::kAnnounce;
  request.keys = {EncodeHello(hello)};
  up_->Call(std::move(request));
}

void StoreRelayTable::Publish(const std::string& key, const std::string& address) {
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.rank = -1;  // in nobody's name
  request.keys = {key};
  request.values = {address};
  published_ = {up_->Call(std::move(request)), key};
}

void StoreRelayTable::PublishFailed(const std::string& key, const absl::Status& why) const {
  WEFT_LOG_ERROR(options_.name, ": cannot tell the store where it is ('", key,
                 "'), so that the hosts below it wait in vain: ", why.message());
}

void StoreRelayTable::Enter(StoreTicket ticket, StoreRequest&& request, absl::Time now) {
  auto taken = TakeArrivals(request);
  if (!taken.ok()) {
    answers_.push_back({ticket, request.op, {}});
    answers_.back().reply.status = taken.status();
    return;
  }
  StoreArrivals arrivals = *std::move(taken);
  std::shared_ptr<const RankSet> wanted;
  if (arrivals.op == StoreOp::kExchange) {
    wanted = std::make_shared<const RankSet>(std::move(arrivals.wanted));
  }
  What what{arrivals.op, request.keys[0], request.size, arrivals.root, request.timeout};
  auto [entry, added] = batches_.try_emplace(what);
  Batch& batch = entry->second;
  bool world = options_.world > 0 && request.size == options_.world;
  if (added) batch.flush_at = world ? now + options_.linger : now;
  for (size_t i = 0; i < arrivals.ranks.size(); ++i) {
    std::string value = arrivals.op == StoreOp::kBarrier ? "" : std::move(arrivals.values[i]);
    batch.arrivals.push_back({ticket, request.op, arrivals.ranks[i], std::move(value), wanted});
  }
  if (static_cast<int32_t>(batch.arrivals.size()) >= options_.expected) batch.flush_at = now;
  next_flush_ = std::min(next_flush_, batch.flush_at);
}

void StoreRelayTable::Send(const What& what, std::vector<Arrival> arrivals) {
  const auto& [op, key, size, root, timeout] = what;
  StoreArrivals together;
  together.op = op;
  together.root = root;
  const RankSet* added = nullptr;
  for (Arrival& arrival : arrivals) {
    together.ranks.push_back(arrival.rank);
    if (op != StoreOp::kBarrier) together.values.push_back(arrival.value);
    if (op != StoreOp::kExchange || arrival.wanted.get() == added) continue;
    added = arrival.wanted.get();
    together.wanted.Add(*added);
  }
  StoreRequest request = EncodeArrivals(key, size, together);
  request.timeout = timeout;
  uint64_t id = up_->Call(std::move(request));
  asked_.emplace(id, Asked{{}, op, what, std::move(arrivals)});
}

void StoreRelayTable::Advance(absl::Time now) {
  if (next_flush_ <= now) {
    next_flush_ = absl::InfiniteFuture();
    for (auto it = batches_.begin(); it != batches_.end();) {
      if (it->second.flush_at > now) {
        next_flush_ = std::min(next_flush_, it->second.flush_at);
        ++it;
        continue;
      }
      // A rank that came twice goes alone the second time, and the root refuses it alone.
      std::set<int32_t> ranks;
      std::vector<Arrival> first;
      for (Arrival& arrival : it->second.arrivals) {
        if (ranks.insert(arrival.rank).second) {
          first.push_back(std::move(arrival));
        } else {
          Send(it->first, {std::move(arrival)});
        }
      }
      Send(it->first, std::move(first));
      it = batches_.erase(it);
    }
  }
  for (StoreClientCore::Answer& answer : up_->TakeAnswers()) {
    auto found = asked_.find(answer.id);
    StoreReply reply = ReplyOf(answer.id, answer.result);
    if (found == asked_.end()) {
      bool failed = answer.id == published_.first && !reply.status.ok();
      if (failed) PublishFailed(published_.second, reply.status);
      continue;
    }
    Asked asked = std::move(found->second);
    asked_.erase(found);
    if (!asked.arrivals.empty()) {
      AnswerGroup(asked, reply);
    } else {
      forwarded_.erase(asked.ticket);
      answers_.push_back({asked.ticket, asked.op, std::move(reply)});
    }
  }
}

void StoreRelayTable::AnswerGroup(const Asked& asked, const StoreReply& reply) {
  if (asked.arrivals.size() > 1 && OneRanksFault(reply.status.code())) {
    for (const Arrival& arrival : asked.arrivals) Send(asked.what, {arrival});
    return;
  }
  int32_t root = std::get<3>(asked.what);
  struct Asker {
    const Arrival* arrival = nullptr;  // one of its
    bool gets = false;                 // the values
  };
  std::map<StoreTicket, Asker> askers;
  for (const Arrival& arrival : asked.arrivals) {
    if (arrival.ticket.request == 0) continue;  // expelled
    Asker& asker = askers[arrival.ticket];
    asker.arrival = &arrival;
    asker.gets = asker.gets || asked.op != StoreOp::kGather || arrival.rank == root;
  }
  // Another relay gets its own part of an exchange; this host's ranks share one answer.
  bool parts = asked.op == StoreOp::kExchange && !options_.files && reply.status.ok();
  absl::StatusOr<std::vector<absl::string_view>> values;
  if (parts) values = DecodeValues(reply.body ? absl::string_view(*reply.body) : "", reply.values);
  for (const auto& [ticket, asker] : askers) {
    StoreReply own;
    if (parts) {
      own = Part(values, std::get<2>(asked.what), *asker.arrival->wanted);
    } else if (asker.gets || !reply.status.ok()) {
      own = reply;
      own.shared = static_cast<uint32_t>(askers.size());
    }
    answers_.push_back({ticket, asker.arrival->asked, std::move(own)});
  }
}

void StoreRelayTable::Sink(uint64_t id, size_t total, size_t offset, absl::string_view bytes) {
  if (asked_.count(id) == 0) return;  // forgotten meanwhile
  File& file = files_[id];
  if (offset == 0) file = File();  // anew, after a connection that broke within it
  if (file.file == nullptr) {
    file.bytes = total;
    file.file = std::make_shared<FileDescriptor>(options_.files ? MakeMemoryFile("weft-store-reply")
                                                                : FileDescriptor());
    if (!*file.file) file.text.reserve(total);
  }
  while (*file.file && !bytes.empty()) {
    ssize_t wrote =
        pwrite(file.file->get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Unfile(file, offset, bytes);
    offset += static_cast<size_t>(wrote);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  if (!bytes.empty()) Unfile(file, offset, bytes);
}

// Where no memory file can be had, or no more of one, all of its bytes go over the sockets.
void StoreRelayTable::Unfile(File& file, size_t offset, absl::string_view bytes) {
  if (*file.file) {
    file.text.resize(offset);
    ssize_t got = pread(file.file->get(), file.text.data(), offset, 0);
    if (got < 0 || static_cast<size_t>(got) != offset) {
      file.status = ErrnoStatus(errno, "read a reply's memory file back");
    }
    file.file->Reset();
  }
  file.text.append(bytes.data(), bytes.size());
}

StoreReply StoreRelayTable::ReplyOf(uint64_t id, StoreResult& result) {
  StoreReply reply;
  reply.status = std::move(result.status);
  if (!reply.status.ok()) {
    if (up_->state() == StoreClientCore::State::kGone) {
      reply.status = Annotate(reply.status, options_.name);
    }
    files_.erase(id);
    return reply;
  }
  reply.number = result.number;
  reply.values = result.count;
  // A file without a streamed result is the beginning of an answer whose connection broke.
  auto begun = files_.extract(id);
  if (!begun.empty() && result.streamed) {
    File file = std::move(begun.mapped());
    reply.status = file.status;
    if (!*file.file) {
      reply.body = std::make_shared<const std::string>(std::move(file.text));
      return reply;
    }
    if (reply.status.ok() && fcntl(file.file->get(), F_ADD_SEALS,
                                   F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
      reply.status = ErrnoStatus(errno, "seal a reply");
    }
    reply.file = std::move(file.file);
    reply.file_bytes = file.bytes;
  } else if (!result.values.empty()) {
    auto body = std::make_shared<std::string>();
    for (const auto& value : result.values) AppendValue(*body, value);
    reply.body = std::move(body);
  }
  return reply;
}

void StoreRelayTable::Forget(StoreTicket ticket) {
  auto found = forwarded_.find(ticket);
  if (found == forwarded_.end()) return;
  up_->Forget(found->second);
  asked_.erase(found->second);
  files_.erase(found->second);
  forwarded_.erase(found);
}

void StoreRelayTable::Expel(StoreTicket ticket, absl::Status why) {
  auto refuse = [&](StoreOp op) {
    answers_.push_back({ticket, op, {}});
    answers_.back().reply.status = why;
  };
  if (auto found = forwarded_.find(ticket); found != forwarded_.end()) {
    refuse(asked_.at(found->second).op);
    return Forget(ticket);
  }
  bool refused = false;
  for (auto& [what, batch] : batches_) {
    auto gone = std::remove_if(batch.arrivals.begin(), batch.arrivals.end(),
                               [&](const Arrival& a) { return a.ticket == ticket; });
    if (gone == batch.arrivals.end()) continue;
    if (!refused) refuse(gone->asked);
    refused = true;
    batch.arrivals.erase(gone, batch.arrivals.end());
  }
  std::erase_if(batches_, [](const auto& entry) { return entry.second.arrivals.empty(); });
  for (auto& [id, asked] : asked_) {
    for (Arrival& arrival : asked.arrivals) {
      if (arrival.ticket != ticket) continue;
      if (!refused) refuse(arrival.asked);
      refused = true;
      arrival.ticket = {};
    }
  }
}

}  // namespace weft::collectives
