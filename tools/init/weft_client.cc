#include "tools/init/weft_client.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/protocol/store_exchange.h"

namespace weft::init {

using collectives::StoreClientCore;
using collectives::StoreOp;
using collectives::StoreRequest;
using collectives::StoreResult;

namespace {

collectives::StoreHello HelloOf(const ClientSetup& setup) {
  collectives::StoreHello hello;
  hello.id = collectives::NewStoreId();
  hello.name = absl::StrCat("rank ", setup.rank);
  hello.job = "weft-init";
  hello.host = setup.host;
  hello.rank = setup.rank;
  hello.ranks = 1;
  hello.generation = setup.generation;
  return hello;
}

StoreRequest Make(StoreOp op, const std::string& key) {
  StoreRequest request;
  request.op = op;
  request.keys.push_back(key);
  return request;
}

absl::Status OtherBytes() {
  return absl::DataLossError("the exchange brought other bytes than were sent");
}

}  // namespace

WeftClient::WeftClient(const ClientSetup& setup)
    : setup_(setup),
      core_(setup.secret, HelloOf(setup)),
      link_(*setup.poller, core_, setup.link, [this] { Changed(); }) {
  core_.set_sink([this](uint64_t id, size_t total, size_t offset, absl::string_view bytes) {
    if (id == exchange_) {
      exchange_bytes_.append(bytes.data(), bytes.size());
      return;
    }
    const std::string& expected = setup_.expected->bytes();
    bool right = total == expected.size() &&
                 std::memcmp(expected.data() + offset, bytes.data(), bytes.size()) == 0;
    if (right) streamed_ += bytes.size();
  });
}

void WeftClient::Start(std::function<void(const absl::Status&)> connected) {
  connected_ = std::move(connected);
  link_.Dial();
}

void WeftClient::Call(StoreRequest&& request, Done done) {
  bool gathers = request.op == StoreOp::kAllGather;
  Send(std::move(request), Asked{std::move(done), gathers, {}});
}

uint64_t WeftClient::Send(StoreRequest&& request, Asked asked) {
  request.timeout = setup_.timeout;
  uint64_t id = core_.Call(std::move(request));
  asked_.Insert(id, std::move(asked));
  if (!busy_) link_.Flush();
  return id;
}

void WeftClient::Set(const std::string& key, const std::string& value, Done done) {
  StoreRequest request = Make(StoreOp::kSet, key);
  request.values.push_back(value);
  Call(std::move(request), std::move(done));
}

void WeftClient::Get(const std::string& key, Done done) {
  Call(Make(StoreOp::kGet, key), std::move(done));
}

void WeftClient::Add(const std::string& key, int64_t amount, Done done) {
  StoreRequest request = Make(StoreOp::kAdd, key);
  request.number = amount;
  Call(std::move(request), std::move(done));
}

void WeftClient::Wait(const std::string& key, Done done) {
  Call(Make(StoreOp::kWait, key), std::move(done));
}

void WeftClient::Barrier(const std::string& key, int rank, int size, Done done) {
  StoreRequest request = Make(StoreOp::kBarrier, key);
  request.rank = rank;
  request.size = size;
  Call(std::move(request), std::move(done));
}

void WeftClient::AllGather(const std::string& key, int rank, int size, Done done) {
  StoreRequest request = Make(StoreOp::kAllGather, key);
  request.rank = rank;
  request.size = size;
  request.values = {std::string(setup_.expected->value(rank))};
  Call(std::move(request), std::move(done));
}

void WeftClient::Exchange(const std::string& key, int rank, int size,
                          const collectives::RankSet& wanted, Done done) {
  StoreRequest request = Make(StoreOp::kExchange, key);
  request.rank = rank;
  request.size = size;
  request.values = {std::string(setup_.expected->value(rank)), wanted.Encode()};
  exchange_ = Send(std::move(request), Asked{std::move(done), false, wanted});
}

void WeftClient::Changed() {
  busy_ = true;
  Deliver();
  busy_ = false;
}

void WeftClient::Deliver() {
  if (core_.state() == StoreClientCore::State::kGone) {
    if (auto connected = std::exchange(connected_, nullptr)) connected(core_.gone());
    std::exchange(asked_, {}).ForEach([this](uint64_t, const Asked& asked) {
      asked.done(core_.gone(), 0);
    });
    return;
  }
  if (core_.state() == StoreClientCore::State::kReady) {
    if (auto connected = std::exchange(connected_, nullptr)) connected(absl::OkStatus());
  }
  std::vector<StoreClientCore::Answer> answers = std::exchange(answers_, {});
  core_.TakeAnswers(answers);
  for (StoreClientCore::Answer& answer : answers) {
    std::optional<Asked> asked = asked_.Take(answer.id);
    if (!asked.has_value()) continue;
    absl::Status status = answer.result.status;
    if (status.ok() && asked->gathers) status = CheckAll(answer.result);
    if (status.ok() && answer.id == exchange_) status = CheckWanted(answer.result, asked->wanted);
    asked->done(status, answer.result.number);
  }
  answers.clear();
  answers_.swap(answers);
}

absl::Status WeftClient::CheckAll(const StoreResult& result) {
  if (result.file != nullptr) return CheckFile(result);
  const std::string& expected = setup_.expected->bytes();
  if (result.streamed) return streamed_ == expected.size() ? absl::OkStatus() : OtherBytes();
  std::string all;
  for (const auto& value : result.values) collectives::AppendValue(all, value);
  return all == expected ? absl::OkStatus() : OtherBytes();
}

// As a rank does: takes its own out of what there is.
absl::Status WeftClient::CheckWanted(StoreResult& result, const collectives::RankSet& wanted) {
  WEFT_RETURN_IF_ERROR(collectives::LoadFile(result));
  std::vector<absl::string_view> values(result.values.begin(), result.values.end());
  if (result.streamed) {
    WEFT_ASSIGN_OR_RETURN(values, collectives::DecodeValues(exchange_bytes_, result.count));
  }
  const Expected& expected = *setup_.expected;
  WEFT_ASSIGN_OR_RETURN(values, collectives::PickExchanged(values, expected.ranks(), wanted));
  std::vector<int> ranks = wanted.ranks();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (values[i] != expected.value(ranks[i])) return OtherBytes();
  }
  return absl::OkStatus();
}

// A host's ranks share one file; the first of them compares every byte of it.
absl::Status WeftClient::CheckFile(const StoreResult& result) const {
  const std::string& expected = setup_.expected->bytes();
  if (result.file_bytes != expected.size()) return OtherBytes();
  void* memory = mmap(nullptr, result.file_bytes, PROT_READ, MAP_SHARED, result.file->get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map the exchange");
  bool right = !setup_.checks_file ||
               absl::string_view(static_cast<const char*>(memory), result.file_bytes) == expected;
  munmap(memory, result.file_bytes);
  return right ? absl::OkStatus() : OtherBytes();
}

}  // namespace weft::init
