// Contracts one by one, each in a step that shows nothing else. Rank 0 sends, rank 1 receives.
#include <algorithm>
#include <array>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "tools/nccl_harness/flow.h"
#include "tools/nccl_harness/scenarios.h"

namespace weft::harness {
namespace {

constexpr int kTries = 200;  // calls of test or isend that must not succeed yet

// Flows for one plan, from rank 0 to rank 1.
absl::Status Carry(Rank& rank, std::vector<End>& ends, const Plan& plan, Contract blame,
                   Contract stuck) {
  std::vector<std::unique_ptr<Sender>> senders;
  std::vector<std::unique_ptr<Receiver>> receivers;
  if (rank.number() == 0) {
    senders.push_back(std::make_unique<Sender>(rank, ends[0], plan, rank.options().seed));
    senders[0]->set_blame(blame);
    WEFT_RETURN_IF_ERROR(senders[0]->Open());
  } else {
    receivers.push_back(std::make_unique<Receiver>(rank, ends[0], plan, rank.options().seed));
    receivers[0]->set_blame(blame);
    WEFT_RETURN_IF_ERROR(receivers[0]->Open());
  }
  return RunFlows(rank, ends, senders, receivers, stuck);
}

absl::Status ZeroBytes(Rank& rank, std::vector<End>& ends) {
  Plan plan = EvenPlan(rank.options().seed, 100, 4, 0);
  plan.messages[3].size = plan.messages[3].posted = plan.posted_max = 8;
  return Carry(rank, ends, plan, Contract::kZeroBytes, Contract::kZeroBytes);
}

absl::Status ShortMessages(Rank& rank, std::vector<End>& ends) {
  Plan plan = EvenPlan(rank.options().seed, 101, 8, 1000);
  plan.posted_max = 5000;
  for (Message& message : plan.messages) message.posted = 5000;
  return Carry(rank, ends, plan, Contract::kTransientIsSuccess, Contract::kCompletes);
}

absl::Status InOrder(Rank& rank, std::vector<End>& ends) {
  Plan plan = EvenPlan(rank.options().seed, 102, 32, 4096);
  return Carry(rank, ends, plan, Contract::kTransientIsSuccess, Contract::kCompletes);
}

absl::Status Tags(Rank& rank, std::vector<End>& ends) {
  Properties properties;
  WEFT_RETURN_IF_ERROR(rank.Need(rank.api().GetProperties(rank.options().device, &properties),
                                 Contract::kPropertiesValid, "getProperties"));
  auto group = static_cast<size_t>(std::min(properties.max_recvs, nccl::abi::kGroupedReceivesMax));
  if (group < 2) return absl::OkStatus();  // nothing to be picked
  Plan plan = EvenPlan(rank.options().seed, 103, static_cast<int>(4 * group), 2048);
  plan.groups.clear();
  for (size_t first = 0; first < plan.messages.size(); first += group) {
    plan.groups.push_back({first, group});
    for (size_t i = 0; i < group; ++i) plan.messages[first + i].tag = static_cast<int>(10 + i);
    std::reverse(plan.send_order.begin() + static_cast<std::ptrdiff_t>(first),
                 plan.send_order.begin() + static_cast<std::ptrdiff_t>(first + group));
  }
  return Carry(rank, ends, plan, Contract::kTagsPickSlots, Contract::kTagsPickSlots);
}

// One request by hand, on this thread.
class Single {
 public:
  Single(Rank& rank, End& end, size_t size)
      : rank_(rank),
        end_(end),
        slots_(rank, rank.number() == 0 ? end.send : end.receive, size, 1) {}
  absl::Status Open() {
    WEFT_RETURN_IF_ERROR(slots_.Register());
    slot_ = slots_.Take();
    slots_.Prepare(slot_, slots_.slot_bytes());
    return absl::OkStatus();
  }
  std::byte* data() { return slots_.data(slot_); }
  size_t size() const { return slots_.slot_bytes(); }
  bool posted() const { return request_ != nullptr; }
  bool done() const { return done_; }

  absl::Status TryPost() {
    if (rank_.number() == 0) {
      return rank_.Need(
          rank_.api().Send(end_.send, data(), size(), 0x69, slots_.memory_handle(), &request_),
          Contract::kTransientIsSuccess, "isend");
    }
    Received what{{data()}, {slots_.memory_handle()}, {size()}, {0x69}};
    return rank_.Need(rank_.api().Receive(end_.receive, what, &request_),
                      Contract::kTransientIsSuccess, "irecv");
  }
  absl::Status TryTest() {
    std::array<int, 64> sizes{};
    int done = 0;
    WEFT_RETURN_IF_ERROR(rank_.Need(rank_.api().Test(request_, &done, sizes.data()),
                                    Contract::kTransientIsSuccess, "test"));
    done_ = done != 0;
    return absl::OkStatus();
  }
  // Posts if it is not yet, and tests until it is done.
  absl::Status Complete() {
    absl::Time give_up = SystemClock().Now() + rank_.options().timeout;
    while (!done_) {
      WEFT_RETURN_IF_ERROR(request_ == nullptr ? TryPost() : TryTest());
      if (SystemClock().Now() < give_up && !rank_.channel().Ended()) continue;
      if (rank_.channel().Ended()) return absl::CancelledError("the other rank has ended");
      rank_.watch().Broken(Contract::kCompletes,
                           absl::StrCat("a message of ", size(), " bytes was not done within ",
                                        absl::FormatDuration(rank_.options().timeout)));
      return absl::AbortedError("stuck");
    }
    return absl::OkStatus();
  }

 private:
  Rank& rank_;
  End& end_;
  Slots slots_;
  size_t slot_ = 0;
  void* request_ = nullptr;
  bool done_ = false;
};

// The sender is early: whatever it is told, its bytes at the time of "done" are what must arrive.
absl::Status SendBeforeReceive(Rank& rank, std::vector<End>& ends) {
  constexpr size_t kBytes = 4 << 20;
  const uint64_t key = rank.options().seed * 7919;
  Single message(rank, ends[0], kBytes);
  WEFT_RETURN_IF_ERROR(message.Open());
  if (rank.number() == 0) {
    FillPattern(key, 0, message.data(), kBytes);
    for (int i = 0; i < kTries && !message.done(); ++i) {
      WEFT_RETURN_IF_ERROR(message.posted() ? message.TryTest() : message.TryPost());
    }
    if (message.posted()) WEFT_RETURN_IF_ERROR(RegisterMeanwhile(rank, ends));
    // Legal: the plugin has copied it all. Then our buffer is of no interest to it.
    if (message.done()) std::fill_n(message.data(), kBytes, kScribble);
    WEFT_RETURN_IF_ERROR(rank.channel().Send("receive now"));
    WEFT_RETURN_IF_ERROR(message.Complete());
    return rank.Meet();  // a plugin that lied reads on from the buffer
  }
  WEFT_RETURN_IF_ERROR(rank.channel().Receive(rank.options().timeout).status());
  WEFT_RETURN_IF_ERROR(message.Complete());
  if (size_t wrong = CountWrong(key, 0, message.data(), kBytes); wrong > 0) {
    rank.watch().Broken(Contract::kSendDoneFreesBuffer,
                        absl::StrCat(wrong, " of ", kBytes,
                                     " bytes are not what they were when the send was done"));
  }
  return rank.Meet();
}

absl::Status ReceiveBeforeSend(Rank& rank, std::vector<End>& ends) {
  constexpr size_t kBytes = 64 << 10;
  const uint64_t key = rank.options().seed * 104729;
  Single message(rank, ends[0], kBytes);
  WEFT_RETURN_IF_ERROR(message.Open());
  if (rank.number() == 0) {
    WEFT_RETURN_IF_ERROR(rank.channel().Receive(rank.options().timeout).status());
    FillPattern(key, 0, message.data(), kBytes);
    WEFT_RETURN_IF_ERROR(message.Complete());
    return rank.Meet();
  }
  for (int i = 0; i < kTries && !message.done(); ++i) {
    WEFT_RETURN_IF_ERROR(message.posted() ? message.TryTest() : message.TryPost());
  }
  if (message.done()) {
    rank.watch().Broken(Contract::kReceiveDoneMeansData,
                        "a receive was done before its message was sent");
  }
  WEFT_RETURN_IF_ERROR(rank.channel().Send("send now"));
  WEFT_RETURN_IF_ERROR(message.Complete());
  if (size_t wrong = CountWrong(key, 0, message.data(), kBytes); wrong > 0) {
    rank.watch().Broken(
        Contract::kReceiveDoneMeansData,
        absl::StrCat("a receive was done with ", wrong, " of ", kBytes, " bytes not there"));
  }
  return rank.Meet();
}

absl::Status InFlight(Rank& rank, std::vector<End>& ends) {
  constexpr size_t kBytes = 512;
  std::vector<std::unique_ptr<Single>> messages;
  for (int i = 0; i < nccl::abi::kRequestsMax; ++i) {
    messages.push_back(std::make_unique<Single>(rank, ends[0], kBytes));
    WEFT_RETURN_IF_ERROR(messages.back()->Open());
    FillPattern(rank.options().seed, static_cast<size_t>(i), messages.back()->data(), kBytes);
  }
  if (rank.number() == 1) {
    int taken = 0;
    for (auto& message : messages) {
      absl::Status posted = message->TryPost();
      if (!posted.ok()) {
        rank.watch().Broken(Contract::kRequestsInFlight,
                            absl::StrCat("irecv failed with ", taken, " receives in flight"));
        return posted;
      }
      if (!message->posted()) break;
      ++taken;
    }
    if (taken < kWindow) {
      rank.watch().Broken(Contract::kRequestsInFlight,
                          absl::StrCat("only ", taken, " receives were taken; NCCL posts ", kWindow,
                                       " before any completes"));
    }
  }
  WEFT_RETURN_IF_ERROR(rank.Meet());
  for (auto& message : messages) WEFT_RETURN_IF_ERROR(message->Complete());
  return absl::OkStatus();
}

absl::Status RegisterAgain(Rank& rank, std::vector<End>& ends) {
  std::vector<std::byte> memory(64 << 10);
  std::array<void*, 4> handles{};
  void* comm = rank.number() == 0 ? ends[0].send : ends[0].receive;
  for (size_t i = 0; i < handles.size(); ++i) {
    WEFT_RETURN_IF_ERROR(rank.Need(
        rank.api().Register(comm, memory.data(), memory.size() >> i, &handles[i]),
        Contract::kRegisterAgain, absl::StrCat("regMr of the same memory, time ", i + 1)));
  }
  for (size_t i : {2, 0, 3, 1}) {
    WEFT_RETURN_IF_ERROR(
        rank.Need(rank.api().Deregister(comm, handles[i]), Contract::kRegisterAgain, "deregMr"));
  }
  return absl::OkStatus();
}

// The sender closes as soon as its only message is done, before it says a word to anybody.
absl::Status CloseDelivers(Rank& rank) {
  WEFT_ASSIGN_OR_RETURN(std::vector<End> ends, rank.Connect(1));
  constexpr size_t kBytes = 100'000;
  const uint64_t key = rank.options().seed * 1299709;
  {
    Single message(rank, ends[0], kBytes);
    WEFT_RETURN_IF_ERROR(message.Open());
    if (rank.number() == 0) {
      FillPattern(key, 0, message.data(), kBytes);
      WEFT_RETURN_IF_ERROR(message.Complete());
    } else {
      absl::Time give_up = SystemClock().Now() + rank.options().timeout;
      while (!message.done() && SystemClock().Now() < give_up && !rank.channel().Ended()) {
        absl::Status moved = message.posted() ? message.TryTest() : message.TryPost();
        if (moved.ok()) continue;
        rank.watch().Broken(Contract::kCloseDelivers,
                            "the receive failed when the sender closed after its send was done");
        return moved;
      }
      if (!message.done() || CountWrong(key, 0, message.data(), kBytes) > 0) {
        rank.watch().Broken(Contract::kCloseDelivers,
                            "what was sent and done before closeSend did not arrive");
      }
    }
  }
  if (rank.number() == 0) {
    WEFT_RETURN_IF_ERROR(rank.Need(rank.api().CloseSend(std::exchange(ends[0].send, nullptr)),
                                   Contract::kCloseDelivers, "closeSend"));
  }
  WEFT_RETURN_IF_ERROR(rank.Meet());
  return rank.Close(ends);
}

// A connect that nobody accepts, and its listener, both given up.
absl::Status GiveUp(Rank& rank) {
  void *context = nullptr, *listen = nullptr, *send = nullptr;
  WEFT_RETURN_IF_ERROR(rank.Need(rank.api().Init(5, &context), Contract::kInitEach, "init"));
  std::array<unsigned char, nccl::abi::kHandleBytes> handle{};
  WEFT_RETURN_IF_ERROR(
      rank.Need(rank.api().Listen(context, rank.options().device, handle.data(), &listen),
                Contract::kListenAtOnce, "listen"));
  // Before v11 nothing would tell the plugin that it was given up.
  int calls = rank.api().per_communicator() ? 3 : 0;
  for (int i = 0; i < calls && send == nullptr; ++i) {
    WEFT_RETURN_IF_ERROR(
        rank.Need(rank.api().Connect(context, rank.options().device, handle.data(), &send, nullptr),
                  Contract::kConnects, "connect"));
  }
  if (send != nullptr) {
    WEFT_RETURN_IF_ERROR(rank.Need(rank.api().CloseSend(send), Contract::kNoCrash, "closeSend"));
  }
  WEFT_RETURN_IF_ERROR(
      rank.Need(rank.api().CloseListen(listen), Contract::kNoCrash, "closeListen"));
  return rank.Need(rank.api().Finalize(context), Contract::kNoCrash, "finalize");
}

}  // namespace

absl::Status RunSteps(Rank& rank) {
  using Step = absl::Status (*)(Rank&, std::vector<End>&);
  constexpr std::pair<const char*, Step> kSteps[] = {
      {"the same memory registered again", RegisterAgain},
      {"messages of 0 bytes", ZeroBytes},
      {"messages shorter than posted", ShortMessages},
      {"messages in order", InOrder},
      {"grouped receives", Tags},
      {"sends before receives", SendBeforeReceive},
      {"receives before sends", ReceiveBeforeSend},
      {"32 receives in flight", InFlight},
  };
  rank.watch().SetStep("connection");
  WEFT_ASSIGN_OR_RETURN(std::vector<End> ends, rank.Connect(1));
  for (const auto& [name, step] : kSteps) {
    rank.watch().SetStep(name);
    WEFT_RETURN_IF_ERROR(step(rank, ends));
    WEFT_RETURN_IF_ERROR(rank.Meet());
  }
  rank.watch().SetStep("close");
  WEFT_RETURN_IF_ERROR(rank.Close(ends));
  rank.watch().SetStep("close right after a send");
  WEFT_RETURN_IF_ERROR(CloseDelivers(rank));
  rank.watch().SetStep("connections given up");
  return GiveUp(rank);
}

}  // namespace weft::harness
