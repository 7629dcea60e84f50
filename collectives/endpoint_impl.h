// The endpoint's engine. One thread at a time drives it: takes turns of moving bytes and advancing
// operations. To drive is a role, not a thread:
//
//   - Start() takes one turn if nobody drives, else the driver finds the operation in the inbox.
//   - Wait() drives until its work is done, or waits while another thread drives.
//   - The background thread drives when works are under way and nobody waits for any, and, after a
//     quiet while, listens, so that an idle process answers questions and accepts links. It looks
//     every few hundred microseconds and is not woken by Start(): a call that is waited for at once
//     costs no hand-over between threads.
//
// A driver with nothing to do spins, then yields, then lays the role down and sleeps in poll() on
// the transports' descriptors; any other thread may take the role meanwhile.
//
// Fields are marked by what guards them: (m) mutex_, (d) the role of driver, (c) constant.
#ifndef WEFT_COLLECTIVES_ENDPOINT_IMPL_H_
#define WEFT_COLLECTIVES_ENDPOINT_IMPL_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/epoll.h"
#include "base/file_descriptor.h"
#include "collectives/endpoint.h"
#include "collectives/operation.h"
#include "collectives/peers.h"
#include "collectives/planner/cost.h"
#include "collectives/planner/forced.h"
#include "collectives/planner/group_place.h"
#include "collectives/priorities.h"
#include "collectives/record_lookup.h"
#include "collectives/recorder.h"

namespace weft::collectives {

class EndpointImpl final : public Endpoint, public Peers, private net::TransportEvents {
 public:
  explicit EndpointImpl(EndpointOptions options);
  ~EndpointImpl() override;
  // Everything that can fail: transports, exchange of addresses, the background thread.
  absl::Status Open();

  Rank rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  const Settings& settings() const override { return options_.settings; }
  std::string Describe() const override;
  const topology::Mesh& mesh() const override { return options_.mesh; }
  int host(Rank rank) const override { return peers_[rank.index()].host; }
  std::vector<LinkCounters> Counters() const override;
  Records* records() const override { return recorder_.records(); }
  std::shared_ptr<std::byte> Allocate(size_t bytes) override;
  const RankPlace& place(Rank rank) const override { return places_[rank.index()]; }
  const StartPhases& start_phases() const override { return start_phases_; }
  const planner::CostTable& costs() const override { return costs_; }

  // ---- For communicators.
  absl::Status Join(const std::shared_ptr<Group>& group);  // fills group->peers
  void Start(std::shared_ptr<Operation> operation);
  absl::Status WaitFor(Operation& operation, absl::Duration timeout);
  void Abort(const std::shared_ptr<Group>& group, absl::Status reason);
  void Leave(const std::shared_ptr<Group>& group);  // cancels what is unfinished
  // Before the group ranks `kept`, this one among them, become a group named `name`: they meet at
  // the store, and where the group has failed on any of them its works end and the links between
  // them are made anew, which fails other groups that use them at that time. FailedPrecondition:
  // they do not agree who they are; DeadlineExceeded names those that did not come.
  absl::Status PrepareShrink(const std::shared_ptr<Group>& group, absl::string_view name,
                             const std::vector<int>& kept);
  const planner::Forced& forced() const { return forced_; }

  // ---- Peers.
  net::SendLink* SendTo(Peer& peer) override;
  absl::StatusOr<net::Region> Register(int transport, void* data, size_t size) override;
  void Seek(Group& group, int peer, uint32_t tag) override;
  void Offer(Group& group, int peer, uint32_t tag, uint32_t known) override;

 private:
  // ---- endpoint.cc: opening.
  absl::Status AgreeOnSecret();
  absl::Status OpenTransports();
  absl::Status ExchangeRecords();
  // Rank 0 makes the table of hosts and places, and its costs, known to the others.
  absl::Status ShareHosts(const FastInitOptions& init, const JobGroups& job);
  absl::Status TakeTable(absl::string_view table);
  absl::Status ChooseTransports();
  absl::Status TakeRecord(Peer& peer, const MemberRecord& record);

  // ---- endpoint_impl.cc: the role of driver. All with mutex_ held unless said otherwise.
  using Lock = std::unique_lock<std::mutex>;
  void TakeRole();
  void LayDownRole();
  // Lays the role down and sleeps until something happens; true if this thread drives again.
  bool Sleep(Lock& lock, int64_t until_ns);
  void Wake();
  void RunAsDriver(const std::function<void()>& task);  // without mutex_
  void Background();

  // ---- Turns; by the driver, without mutex_.
  bool Turn(int64_t now_ns);
  // Turns until `operation` is done, `until_ns`, or the role should go to somebody else; spins,
  // yields and sleeps in between. False if the role went while it slept.
  bool Drive(Operation* operation, int64_t until_ns);
  bool TakeInbox();  // true if there was anything
  bool AdvanceAll(int64_t now_ns);
  void Conclude(Operation& operation, int64_t now_ns);
  bool PrepareWait();
  void FinishWait();
  int64_t NextDeadline(int64_t until_ns) const;

  // ---- diagnosis.cc: failures; by the driver.
  void OnRequestFailed(Operation& operation, int64_t now_ns);
  // Tells the others, unless `told_by` did. Works end after `grace`, when links that hold their
  // memory are closed.
  void FailGroup(Group& group, const absl::Status& status, int64_t now_ns, absl::Duration grace,
                 const Peer* told_by = nullptr);
  // All of its peers; after a notice of `told_by`, those whose links may have to be closed.
  void TellFailure(const Group& group, const absl::Status& verdict, const Peer* told_by);
  bool IsActive(const Group& group) const;
  void OnBufferFault(Operation& operation, const absl::Status& found, int64_t now_ns);
  void CloseLinksOf(Operation& operation);
  void Examine(int64_t now_ns);
  void ExamineOne(Operation& operation, int64_t now_ns);
  // Unavailable: group rank `peer` has left without having called this collective.
  static absl::Status Left(const Operation& operation, size_t peer);
  void Ask(Operation& operation, int64_t now_ns);
  absl::Status Judge(const Operation& operation) const;  // OK: no two calls differ
  absl::Status Overdue(const Operation& operation, int64_t now_ns) const;
  void Answer(Peer& peer, uint32_t group_id, uint32_t sequence);
  void HandleNotice(Peer& peer, absl::string_view bytes);
  bool FlushNotices();
  Group* FindGroup(uint32_t id);
  void MarkGone(Peer& peer, absl::Status why);

  // ---- membership.cc; by the driver, but for what shrinks.
  // Whether what it sent before it went may yet come.
  static bool IsParting(const Peer& peer, int64_t now_ns);
  void SayGoodbye(Group& group);
  void HandleGoodbye(Peer& peer, uint32_t group_id, uint32_t next);
  void PublishDepartures(int64_t now_ns);
  // Whether the group is healthy on all survivors.
  absl::StatusOr<bool> MeetSurvivors(Group& group, absl::string_view key,
                                     const std::vector<int>& kept, bool healthy);
  void DropLinks(const std::shared_ptr<Group>& group, const std::vector<int>& kept);
  void Reconcile(const std::shared_ptr<Group>& group, const std::vector<int>& kept);

  // ---- any_source.cc; by the driver.
  void Notify(Group& group, int peer, std::string notice);
  void HandleAnySource(Peer& from, bool offer, uint32_t group_id, uint32_t tag, uint32_t known);

  // ---- TransportEvents, from within Turn.
  void OnAccepted(std::unique_ptr<net::ReceiveLink> link) override;
  void OnNotice(net::Link& link, absl::string_view bytes) override;
  void OnBroken(net::Link& link, const absl::Status& status) override;

  EndpointOptions options_;             // (c)
  absl::Duration collective_timeout_;   // (c)
  planner::CostTable costs_;            // (c)
  planner::Forced forced_;              // (c)
  std::vector<RankPlace> places_;       // (c), by rank of the job
  Recorder recorder_;                   // its calls say by whom
  int64_t spin_ns_ = 0, yield_ns_ = 0;  // (c)
  Epoll epoll_;                         // (c)
  FileDescriptor event_;                // (c)
  StartPhases start_phases_;            // (c)

  // Before links: these go after them.
  std::unique_ptr<net::Transport> transports_[kTransportsMax];  // (d)
  std::vector<Peer> peers_;                                     // (d), by rank of the job
  std::unique_ptr<RecordLookup> lookup_;                        // (c)
  std::vector<std::unique_ptr<net::Link>> closed_;              // (d), to be destroyed
  std::vector<std::shared_ptr<Operation>> active_;              // (d), by priority, then start
  std::vector<std::pair<int, std::string>> heard_;              // (d), notices since it began
  std::vector<Peer*> parting_;  // (d), whose link broke, and whom no group has heard of as departed
  Priorities priorities_;       // (d)
  uint64_t turn_ = 0;           // (d)
  int64_t now_ns_ = 0;          // (d)
  int64_t examine_ns_ = 0;      // (d), when next
  bool notices_waiting_ = false;  // (d)
  int64_t linger_ns_ = 0;         // (d), until then notices are on their way

  mutable std::mutex mutex_;
  std::condition_variable changed_;     // a work is done, or the role is free
  std::condition_variable background_;  // for the background thread alone
  bool driving_ = false;                // (m)
  bool armed_ = false;                  // (m), PrepareWait without FinishWait
  bool stop_ = false;                   // (m)
  bool looks_seldom_ = false;           // (m), the background thread looks at the longest interval
  int sleepers_ = 0;                    // (m), threads in poll()
  std::atomic<int> waiters_{0};         // written under (m): threads that wait on changed_
  std::vector<std::shared_ptr<Operation>> inbox_;      // (m)
  std::vector<std::function<void()>> tasks_;           // (m)
  std::atomic<bool> inbox_full_{false};                // inbox_ or tasks_ hold something
  std::atomic<int> unfinished_{0};                     // operations started and not done
  std::atomic<int64_t> busy_ns_{0};                    // when a thread last started or waited
  std::map<uint32_t, std::shared_ptr<Group>> groups_;  // (m)
  std::map<uint32_t, absl::Status> failed_early_;      // (m), groups that this rank has yet to make
  // (m), likewise: goodbyes, by group and rank of the job
  std::map<std::pair<uint32_t, int>, uint32_t> left_early_;

  std::thread thread_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ENDPOINT_IMPL_H_
