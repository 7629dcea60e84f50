// The endpoint's engine: it moves bytes and advances operations, in turns that ProgressDriver gives
// to one thread at a time. What stands alone is in classes of its own:
//
//   ProgressDriver     which thread drives
//   PeerLinks          links to the other ranks, and notices
//   RankDirectory      what is known of the other ranks
//   GroupRegistry      which groups there are
//   KeptRegistrations  whose memory stays registered with NICs
//   Priorities         which operation goes first
//   Fillers            what clears links of a group that has failed
//   Recorder           what records and traces say
//
// What is left here works on the operations under way and their groups, in files by idea:
// endpoint.cc opens, endpoint_impl.cc takes turns, membership.cc is about who joins, leaves and
// departs, diagnosis.cc about what goes wrong, drain.cc about links that outlive a failed group,
// any_source.cc about receives from any rank.
//
// Fields are marked by what guards them: (d) the role of driver, (c) constant after Open(); the
// others are thread-safe.
#ifndef WEFT_COLLECTIVES_ENDPOINT_IMPL_H_
#define WEFT_COLLECTIVES_ENDPOINT_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/endpoint.h"
#include "collectives/group_registry.h"
#include "collectives/group_settings.h"
#include "collectives/kept_registrations.h"
#include "collectives/operation.h"
#include "collectives/peer_links.h"
#include "collectives/peers.h"
#include "collectives/planner/planned_peers.h"
#include "collectives/priorities.h"
#include "collectives/progress_driver.h"
#include "collectives/rank_directory.h"
#include "collectives/recorder.h"
#include "collectives/rejoin.h"

namespace weft::collectives {

class EndpointImpl final : public Endpoint,
                           public Rejoinable,
                           public Peers,
                           private ProgressEngine {
 public:
  explicit EndpointImpl(RejoinableOptions options);
  ~EndpointImpl() override;
  // Everything that can fail: transports, exchange of addresses, the background thread.
  absl::Status Open();

  Rank rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  const Settings& settings() const override { return options_.settings; }
  std::string Describe() const override;
  const topology::Mesh& mesh() const override { return options_.mesh; }
  int host(Rank rank) const override { return directory_.host(rank); }
  std::vector<LinkCounters> Counters() const override;
  Records* records() const override { return recorder_.records(); }
  std::shared_ptr<std::byte> Allocate(size_t bytes) override;
  const RankPlace& place(Rank rank) const override { return directory_.place(rank); }
  std::shared_ptr<const GroupPlace> PlaceOf(absl::Span<const Rank> ranks) const override;
  uint64_t MulticastBytes(absl::Span<const Rank> ranks) const override;
  const StartPhases& start_phases() const override { return start_phases_; }
  const planner::CostTable& costs() const override { return directory_.costs(); }

  // ---- Rejoinable: membership.cc.
  absl::Status Forget(const std::vector<int>& replaced) override;
  absl::Status Rejoin(const Rejoining& rejoining) override;
  LinkTotals links_made() const override;
  // The job's epoch (recovery.h): that in which ranks were replaced last, or 0. Groups' ids hold
  // it, so that no message of an earlier epoch is taken for one of the present.
  int64_t epoch() const { return epoch_; }

  // ---- For communicators.
  topology::AxisSet axes_at_once() const { return axes_at_once_; }  // collective.axes_at_once
  absl::Status Join(const std::shared_ptr<Group>& group);           // fills group->peers
  void Start(std::shared_ptr<Operation> operation);
  absl::Status WaitFor(Operation& operation, absl::Duration timeout) {
    return driver_.WaitFor(operation, timeout);
  }
  // `says`: in the log, where the caller does not.
  void Abort(const std::shared_ptr<Group>& group, absl::Status reason, bool says);
  void Leave(const std::shared_ptr<Group>& group);  // cancels what is unfinished
  // Before the group ranks `kept`, this one among them, become a group named `name`: they meet at
  // the store, and where the group has failed on any of them its works end and the links between
  // them are made anew, which fails other groups that use them at that time. FailedPrecondition:
  // they do not agree who they are; DeadlineExceeded names those that did not come.
  absl::Status PrepareShrink(const std::shared_ptr<Group>& group, absl::string_view name,
                             const std::vector<int>& kept);
  const GroupSettings& group_settings() const { return group_settings_; }  // by default

  // keep_registered.h.
  std::shared_ptr<void> Keep(const std::shared_ptr<Endpoint>& self, void* data, size_t bytes);

  // ---- Peers.
  net::SendLink* SendTo(Peer& peer) override { return links_.SendTo(peer, now_ns_); }
  absl::StatusOr<net::Region> Register(int transport, void* data, size_t size) override;
  bool KeepsRegistrations(int transport) const override {
    return KeptRegistrations::Serves(links_.transport(transport));
  }
  void Seek(Group& group, int peer, uint32_t tag) override;
  void Offer(Group& group, int peer, uint32_t tag, uint32_t known) override;

 private:
  // ---- endpoint.cc: opening.
  absl::StatusOr<CpuSet> CpusOfProgress(bool fill_cores) const;
  absl::Status AgreeOnSecret();
  absl::Status LearnRanks(RankDirectory::Own own);

  // ---- ProgressEngine: turns; by the driver.
  bool Turn(int64_t now_ns) override;
  bool TakeInbox(int64_t now_ns) override;
  bool PrepareWait() override;
  void FinishWait() override;
  int64_t NextDeadline() const override;
  bool AdvanceAll(int64_t now_ns);
  void Conclude(Operation& operation, int64_t now_ns);

  // ---- diagnosis.cc: failures; by the driver.
  void OnRequestFailed(Operation& operation, int64_t now_ns);
  // Tells the others, unless `told_by` did. Works end after `grace`, when links that hold their
  // memory are closed.
  void FailGroup(Group& group, const absl::Status& status, int64_t now_ns, absl::Duration grace,
                 const Peer* told_by = nullptr, bool says = true);
  // All of its peers; after a notice of `told_by`, those whose links may have to be closed.
  void TellFailure(const Group& group, const absl::Status& verdict, const Peer* told_by);
  bool IsActive(const Group& group) const;
  void OnBufferFault(Operation& operation, const absl::Status& found, int64_t now_ns);
  void CloseLinksOf(Operation& operation);
  void Examine(int64_t now_ns);
  void ExamineOne(Operation& operation, int64_t now_ns);
  // Unavailable: group rank `peer` has left without having called this collective.
  static absl::Status Left(const Operation& operation, size_t peer);
  // Whether group rank `peer`, which has left, may have sent ahead what `operation` receives: its
  // link stands until such messages are taken.
  static bool MayHaveSentAhead(Operation& operation, size_t peer);
  // Whether a small message that came ahead may yet be received. Where links are kept, fillers
  // receive those of failed groups (drain.h).
  bool WantsMessage(uint64_t tag) {
    return options_.rejoins || !groups_.HasFailed(GroupOfLinkTag(tag));
  }
  void Ask(Operation& operation, int64_t now_ns, bool of_all);  // the ranks: Diagnosis::of_all
  void Answer(Peer& peer, uint32_t group_id, uint32_t sequence);
  void HandleNotice(Peer& peer, absl::string_view bytes);

  // ---- membership.cc; by the driver, but for what shrinks.
  void SayGoodbye(Group& group);
  // Once the group has failed: returns when its works have ended, which notices that must leave
  // before their links are closed delay for a bounded time (CloseLinksOf). Not by the driver.
  void EndWorks(Group& group);
  void HandleGoodbye(Peer& peer, uint32_t group_id, uint32_t next);
  // Whether the group is healthy on all survivors.
  absl::StatusOr<bool> MeetSurvivors(Group& group, absl::string_view key,
                                     const std::vector<int>& kept, bool healthy);
  void DropLinks(const std::shared_ptr<Group>& group, const std::vector<int>& kept);
  void Reconcile(const std::shared_ptr<Group>& group, const std::vector<int>& kept);

  // ---- drain.cc; by the driver.
  void KeepAccount(Operation& operation);  // of what it has posted; when it ends
  void AskToDrain(const Group& group);
  // Without a value where this side has finished the call.
  std::optional<PostedCount> PostedWith(Group& group, const Peer& peer, uint32_t number,
                                        bool is_message);
  void HandleDrain(Peer& peer, uint32_t group_id, uint32_t number, bool is_message,
                   absl::string_view text);

  // ---- any_source.cc; by the driver.
  void HandleAnySource(Peer& from, bool offer, uint32_t group_id, uint32_t tag, uint32_t known);

  RejoinableOptions options_;       // (c)
  GroupSettings group_settings_;    // (c)
  topology::AxisSet axes_at_once_;  // (c)
  Recorder recorder_;               // its calls say by whom
  StartPhases start_phases_;        // (c)

  PeerLinks links_{[this](Rank rank) { directory_.LookUp(rank); },
                   [this](uint64_t tag) { return WantsMessage(tag); }};  // (d)
  KeptRegistrations registrations_;                                      // (d)
  std::vector<std::shared_ptr<Operation>> active_;  // (d), by priority, then start
  Priorities priorities_{options_.settings.Integer("transport.requests")};  // (d)
  std::map<uint32_t, std::shared_ptr<Group>> left_groups_;                  // (d), of this epoch
  Fillers fillers_;                                                         // (d), go after links
  std::atomic<int64_t> epoch_{0};
  uint64_t turn_ = 0;       // (d)
  int64_t now_ns_ = 0;      // (d)
  int64_t examine_ns_ = 0;  // (d), when next
  int64_t linger_ns_ = 0;   // (d), until then notices are on their way

  GroupRegistry groups_;
  RankDirectory directory_;        // (c)
  planner::PlannedPeers planned_;  // (c)
  mutable ProgressDriver driver_{this};
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ENDPOINT_IMPL_H_
