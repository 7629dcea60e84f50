// A fabric of RDMA devices within one process, for the verbs transport to be tested on. Its queue
// pairs have the semantics of reliable connections, or of unreliable ones, which lose messages
// whole and in silence but keep the order of the rest, and move real bytes; what a script wants
// goes wrong: any call fails, any work request ends with any status, completions are lost, late,
// doubled or reordered, events come.
//
// What it is strict about, as devices are: keys and bounds of memory on both sides, states of queue
// pairs, receives that are missing, depths of queues. A completion queue that overruns is counted.
// Registered memory is the pages of that time, if they are of a shared mapping: who unmaps them and
// maps others at their address does not see what the wire writes, nor send what lies there.
//
// A DMA-BUF is memory of another device: any descriptor that can be mapped stands for one, and the
// address at which it is registered is never touched, so that it may be one at which there is
// nothing. What is written to it by the wire is seen through the descriptor only once the same
// device has read of it, as PCIe has it at worst.
//
// Bytes move while a work request is posted, unless the script holds them; held ones and late
// completions move on at later calls of Poll(), which are the fabric's ticks. Thread-safe.
#ifndef WEFT_TESTS_NET_VERBS_SCRIPTED_NIC_H_
#define WEFT_TESTS_NET_VERBS_SCRIPTED_NIC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "net/verbs/nic.h"

namespace weft::net {

struct ScriptedDeviceOptions {
  std::string name = "scripted0";
  std::string pci_address;
  uint32_t address = 0;  // IPv4 of its GIDs, host order
  bool ethernet = true;
  bool needs_global = false;
  bool ipv6 = false;
  int ports = 1;
  uint32_t inline_max = 256;
  int completions_max = 1 << 15;
  bool dma_bufs = true;
  bool resolves_addresses = false;  // queue pairs are connected by other threads
};

// One work request on its way.
struct ScriptedTransfer {
  std::string from;  // device
  uint32_t queue_pair = 0;
  uint32_t flow_label = 0;
  uint32_t length = 0;
  bool has_immediate = false;
  uint64_t tick = 0;
  bool is_message = false;  // into a receive with memory
  bool is_read = false;
  int traffic_class = 0;
  uint16_t udp_source_port = 0;  // that was asked of the device
};

// What becomes of it.
struct ScriptedFate {
  bool fails = false;  // with `status`; the queue pair is in error then
  NicStatus status = NicStatus::kRetryExceeded;
  bool lost = false;    // a message, on its way: nobody is told; a reliable one is sent again
  bool arrives = true;  // even if it fails: only the acknowledgement was lost
  int hold_ticks = 0;
  bool lose_send = false, lose_receive = false;  // completions
  int late_send = 0, late_receive = 0;           // ticks
  bool twice = false;                            // both completions
};

class ScriptedFabric {
 public:
  // A call of a device. "" or "open", "limits", "query_port", "query_gids", "register",
  // "register_dma_buf", "create_completion_queue", "create_receive_queue", "create_queue_pair",
  // "to_init", "to_rtr", "to_rts", "to_error", "to_reset", "post_writes", "post_sends",
  // "post_reads", "post_receives", "poll", "arm", "list": an error fails it.
  using OnCall = std::function<absl::Status(const std::string& call, const std::string& device)>;
  using OnTransfer = std::function<ScriptedFate(const ScriptedTransfer&)>;

  ScriptedFabric();
  ~ScriptedFabric();

  // The scripts run under the fabric's lock and must not call it.
  void set_on_call(OnCall script);
  void set_on_transfer(OnTransfer script);

  // The devices of one host. The fabric outlives what is made of them.
  std::unique_ptr<Nic> MakeNic(const std::vector<ScriptedDeviceOptions>& devices);
  // Opens devices that are there already once more: as another process of that host has them.
  std::unique_ptr<Nic> ReopenNic(const std::vector<std::string>& devices);

  void PushEvent(const std::string& device, const NicEvent& event);
  void SetPortActive(const std::string& device, bool active);  // no event by itself
  // Whoever destroys a queue pair waits from now on, until they may go on, for 20 s at most.
  void HoldDestroy(bool hold);
  int destroyed_while_held() const;  // by those who did not wait any longer
  // Likewise whoever connects a queue pair of this device, in vain. "": of none, from now on.
  void HoldConnect(const std::string& device);
  int held_connects() const;         // since then
  int connected_while_held() const;  // by those who did not wait any longer
  int receives_lost() const;         // queue pairs whose shared receives were destroyed before them
  // So many bytes per second leave the device from now on, as time is advanced; 0: no limit.
  void SetRate(const std::string& device, double bytes_per_second);
  // All that is sent from now on passes one of these spines, each with so many bytes per second as
  // time is advanced; `spine_of` says which, under the fabric's lock.
  using SpineOf = std::function<size_t(const std::string& device, uint32_t flow_label)>;
  void SetSpines(const std::vector<double>& bytes_per_second, SpineOf spine_of);
  std::vector<uint64_t> spine_bytes() const;
  void Advance(absl::Duration step);

  // The numbers of all queue pairs that there are, but for those that were reset.
  std::vector<uint32_t> QueuePairs(const std::string& device) const;
  uint64_t bytes_from(const std::string& device) const;
  // Messages: lost, or of unreliable ones without a receive.
  int dropped_from(const std::string& device) const;
  int overruns() const;   // of completion queues
  int not_ready() const;  // writes with immediate, and reliable messages, that found no receive
  size_t registrations() const;
  size_t unseen_writes() const;  // to DMA-BUFs

  struct Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_VERBS_SCRIPTED_NIC_H_
