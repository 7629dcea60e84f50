#include "net/verbs/ibverbs_nic.h"

#include <endian.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr int kLocalAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr unsigned kRelaxed = IBV_ACCESS_RELAXED_ORDERING;
constexpr unsigned kSignaled = IBV_SEND_SIGNALED, kInline = IBV_SEND_INLINE;
constexpr size_t kGidsMax = 512;
constexpr size_t kPostMax = 8;  // work requests handed over at once

absl::Status Failed(const char* call, const std::string& device, int error) {
  std::string hint;
  if (error == ENOMEM) {
    hint = "; is the limit of locked memory (ulimit -l) too low, or the device out of queues?";
  } else if (error == EACCES || error == EPERM) {
    hint = "; may this process open /dev/infiniband/*?";
  } else if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    hint = "; no route to, or no answer from, the remote address: is it of this GID's network?";
  }
  return absl::UnavailableError(
      absl::StrCat(call, " on ", device, ": ", std::strerror(error), hint));
}

// Device, protection domain and completion channel: what everything made of a device shares.
struct Opened {
  std::string name;
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ~Opened() {
    if (channel != nullptr) ibv_destroy_comp_channel(channel);
    if (domain != nullptr) ibv_dealloc_pd(domain);
    if (context != nullptr) ibv_close_device(context);
  }
};

class IbverbsCompletionQueue final : public NicCompletionQueue {
 public:
  IbverbsCompletionQueue(std::shared_ptr<Opened> opened, ibv_cq* queue)
      : opened_(std::move(opened)), queue_(queue) {}
  ~IbverbsCompletionQueue() override { ibv_destroy_cq(queue_); }
  ibv_cq* get() const { return queue_; }

  absl::StatusOr<size_t> Poll(absl::Span<NicCompletion> out) override {
    std::array<ibv_wc, 32> found;
    const int room = static_cast<int>(std::min(out.size(), found.size()));
    const int count = ibv_poll_cq(queue_, room, found.data());
    if (count < 0) return Failed("ibv_poll_cq", opened_->name, EIO);
    for (int i = 0; i < count; ++i) {
      const ibv_wc& one = found[static_cast<size_t>(i)];
      NicCompletion& to = out[static_cast<size_t>(i)];
      to = NicCompletion{};
      to.id = one.wr_id;
      to.status = static_cast<NicStatus>(one.status);
      to.vendor_error = one.vendor_err;
      if (one.status != IBV_WC_SUCCESS) continue;
      to.receive = (one.opcode & IBV_WC_RECV) != 0;
      if (to.receive) to.immediate = be32toh(one.imm_data);
    }
    return static_cast<size_t>(count);
  }

  absl::Status Arm() override {
    const int error = ibv_req_notify_cq(queue_, 0);
    return error == 0 ? absl::OkStatus() : Failed("ibv_req_notify_cq", opened_->name, error);
  }

 private:
  std::shared_ptr<Opened> opened_;
  ibv_cq* queue_;
};

ibv_mtu MtuOf(int bytes) {
  if (bytes >= 4096) return IBV_MTU_4096;
  if (bytes >= 2048) return IBV_MTU_2048;
  if (bytes >= 1024) return IBV_MTU_1024;
  return bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

class IbverbsQueuePair final : public NicQueuePair {
 public:
  IbverbsQueuePair(std::shared_ptr<Opened> opened, ibv_qp* pair)
      : opened_(std::move(opened)), pair_(pair) {}
  ~IbverbsQueuePair() override { ibv_destroy_qp(pair_); }
  uint32_t number() const override { return pair_->qp_num; }

  absl::Status ToInit(int port, int pkey_index) override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = static_cast<uint8_t>(port);
    to.pkey_index = static_cast<uint16_t>(pkey_index);
    to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    return Modify("ibv_modify_qp to INIT", &to,
                  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }

  absl::Status ToReadyToReceive(const NicPath& path) override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTR;
    to.path_mtu = MtuOf(path.mtu);
    to.dest_qp_num = path.remote_queue_pair;
    to.rq_psn = path.remote_psn;
    to.max_dest_rd_atomic = 1;
    to.min_rnr_timer = 12;  // 0.64 ms; credits keep a receiver from ever being not ready
    to.ah_attr.port_num = static_cast<uint8_t>(path.port);
    to.ah_attr.sl = static_cast<uint8_t>(path.service_level);
    if (path.ethernet) {
      to.ah_attr.is_global = 1;
      std::memcpy(&to.ah_attr.grh.dgid, path.remote_gid.data(), path.remote_gid.size());
      to.ah_attr.grh.flow_label = path.flow_label;
      to.ah_attr.grh.sgid_index = static_cast<uint8_t>(path.gid_index);
      to.ah_attr.grh.hop_limit = 255;
      to.ah_attr.grh.traffic_class = static_cast<uint8_t>(path.traffic_class);
    } else {
      to.ah_attr.dlid = path.remote_lid;
    }
    return Modify("ibv_modify_qp to RTR", &to,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }

  absl::Status ToReadyToSend(const NicPath& path) override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTS;
    to.timeout = static_cast<uint8_t>(path.timeout);
    to.retry_cnt = static_cast<uint8_t>(path.retry_count);
    to.rnr_retry = 7;
    to.sq_psn = path.local_psn;
    to.max_rd_atomic = 1;
    return Modify("ibv_modify_qp to RTS", &to,
                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  absl::Status ToError() override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_ERR;
    return Modify("ibv_modify_qp to ERR", &to, IBV_QP_STATE);
  }

  absl::StatusOr<std::string> State() override {
    static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    ibv_qp_attr attributes{};
    ibv_qp_init_attr unused{};
    const int error = ibv_query_qp(pair_, &attributes, IBV_QP_STATE, &unused);
    if (error != 0) return Failed("ibv_query_qp", opened_->name, error);
    return std::string(attributes.qp_state <= IBV_QPS_ERR ? kNames[attributes.qp_state] : "?");
  }

  absl::Status PostWrites(absl::Span<const NicWrite> writes) override {
    for (size_t from = 0; from < writes.size(); from += kPostMax) {
      std::array<ibv_send_wr, kPostMax> requests{};
      std::array<ibv_sge, kPostMax> pieces{};
      const size_t count = std::min(kPostMax, writes.size() - from);
      for (size_t i = 0; i < count; ++i) {
        Fill(writes[from + i], &requests[i], &pieces[i]);
        requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
      }
      ibv_send_wr* bad = nullptr;
      const int error = ibv_post_send(pair_, requests.data(), &bad);
      if (error != 0) return Failed("ibv_post_send", opened_->name, error);
    }
    return absl::OkStatus();
  }

  absl::Status PostReceives(uint64_t first_id, int count) override {
    for (int from = 0; from < count; from += static_cast<int>(kPostMax)) {
      std::array<ibv_recv_wr, kPostMax> requests{};
      const auto now = static_cast<size_t>(std::min(static_cast<int>(kPostMax), count - from));
      for (size_t i = 0; i < now; ++i) {
        requests[i].wr_id = first_id + static_cast<uint64_t>(from) + i;
        requests[i].next = i + 1 < now ? &requests[i + 1] : nullptr;
      }
      ibv_recv_wr* bad = nullptr;
      const int error = ibv_post_recv(pair_, requests.data(), &bad);
      if (error != 0) return Failed("ibv_post_recv", opened_->name, error);
    }
    return absl::OkStatus();
  }

 private:
  static void Fill(const NicWrite& write, ibv_send_wr* request, ibv_sge* piece) {
    piece->addr = reinterpret_cast<uintptr_t>(write.local);
    piece->length = write.length;
    piece->lkey = write.local_key;
    request->wr_id = write.id;
    request->sg_list = piece;
    request->num_sge = write.length > 0 ? 1 : 0;
    request->opcode = write.has_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request->send_flags = (write.signaled ? kSignaled : 0u) | (write.in_line ? kInline : 0u);
    request->imm_data = htobe32(write.immediate);
    request->wr.rdma.remote_addr = write.remote;
    request->wr.rdma.rkey = write.remote_key;
  }

  absl::Status Modify(const char* doing, ibv_qp_attr* to, int mask) {
    const int error = ibv_modify_qp(pair_, to, mask);
    return error == 0 ? absl::OkStatus() : Failed(doing, opened_->name, error);
  }

  std::shared_ptr<Opened> opened_;
  ibv_qp* pair_;
};

double GbpsOf(const ibv_port_attr& port) {
  double lane = 0;
  switch (port.active_speed) {
    case 1:
      lane = 2.5;
      break;
    case 2:
      lane = 5;
      break;
    case 4:
    case 8:
      lane = 10;
      break;
    case 16:
      lane = 14;
      break;
    case 32:
      lane = 25;
      break;
    case 64:
      lane = 50;
      break;
    case 128:
      lane = 100;
      break;
    default:
      break;
  }
  int width = 0;
  switch (port.active_width) {
    case 1:
      width = 1;
      break;
    case 2:
      width = 4;
      break;
    case 4:
      width = 8;
      break;
    case 8:
      width = 12;
      break;
    case 16:
      width = 2;
      break;
    default:
      break;
  }
  return lane * width;
}

class IbverbsDevice final : public NicDevice {
 public:
  explicit IbverbsDevice(std::shared_ptr<Opened> opened) : opened_(std::move(opened)) {}
  const std::string& name() const override { return opened_->name; }

  absl::StatusOr<NicLimits> Limits() override {
    ibv_device_attr device{};
    const int error = ibv_query_device(opened_->context, &device);
    if (error != 0) return Failed("ibv_query_device", name(), error);
    return NicLimits{device.phys_port_cnt, device.max_qp, device.max_qp_wr, device.max_cqe};
  }

  absl::StatusOr<NicPort> QueryPort(int port) override {
    ibv_port_attr found{};
    const int error = ibv_query_port(opened_->context, static_cast<uint8_t>(port), &found);
    if (error != 0) return Failed("ibv_query_port", name(), error);
    NicPort out;
    out.number = port;
    out.active = found.state == IBV_PORT_ACTIVE;
    out.state = ibv_port_state_str(found.state);
    out.ethernet = found.link_layer == IBV_LINK_LAYER_ETHERNET;
    out.mtu = 128 << found.active_mtu;
    out.gbps = GbpsOf(found);
    out.lid = found.lid;
    return out;
  }

  absl::StatusOr<std::vector<NicGid>> QueryGids(int port) override {
    std::vector<ibv_gid_entry> table(kGidsMax);
    const ssize_t count = ibv_query_gid_table(opened_->context, table.data(), table.size(), 0);
    if (count < 0) return Failed("ibv_query_gid_table", name(), static_cast<int>(-count));
    std::vector<NicGid> out;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      if (static_cast<int>(table[i].port_num) != port) continue;
      NicGid gid;
      gid.index = static_cast<int>(table[i].gid_index);
      std::memcpy(gid.gid.data(), table[i].gid.raw, gid.gid.size());
      gid.kind = table[i].gid_type == IBV_GID_TYPE_ROCE_V2   ? GidKind::kRoceV2
                 : table[i].gid_type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1
                                                             : GidKind::kInfiniband;
      out.push_back(gid);
    }
    return out;
  }

  absl::StatusOr<NicMemory> Register(void* data, size_t size, bool relaxed) override {
    const unsigned access = kLocalAccess | (relaxed ? kRelaxed : 0u);
    return Registered("ibv_reg_mr", ibv_reg_mr(opened_->domain, data, size, access));
  }

  absl::StatusOr<NicMemory> RegisterDmaBuf(int fd, uint64_t offset, size_t size, void* data,
                                           bool relaxed) override {
    const int access = kLocalAccess | (relaxed ? static_cast<int>(kRelaxed) : 0);
    return Registered("ibv_reg_dmabuf_mr",
                      ibv_reg_dmabuf_mr(opened_->domain, offset, size,
                                        reinterpret_cast<uintptr_t>(data), fd, access));
  }

  void Deregister(const NicMemory& memory) override {
    ibv_dereg_mr(reinterpret_cast<ibv_mr*>(memory.handle));  // NOLINT: it is one
  }

  absl::StatusOr<std::unique_ptr<NicCompletionQueue>> CreateCompletionQueue(int depth) override {
    ibv_cq* queue = ibv_create_cq(opened_->context, depth, nullptr, opened_->channel, 0);
    if (queue == nullptr) return Failed("ibv_create_cq", name(), errno);
    return std::make_unique<IbverbsCompletionQueue>(opened_, queue);
  }

  absl::StatusOr<std::unique_ptr<NicQueuePair>> CreateQueuePair(
      NicQueuePairOptions* options) override {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = static_cast<IbverbsCompletionQueue*>(options->completions)->get();
    wanted.recv_cq = wanted.send_cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {options->send_depth, options->receive_depth, 1, 1, options->inline_bytes};
    ibv_qp* pair = ibv_create_qp(opened_->domain, &wanted);
    if (pair == nullptr && errno == EINVAL && options->inline_bytes > 0) {  // too much to ask for
      wanted.cap = {options->send_depth, options->receive_depth, 1, 1, 0};
      pair = ibv_create_qp(opened_->domain, &wanted);
    }
    if (pair == nullptr) return Failed("ibv_create_qp", name(), errno);
    options->inline_bytes = wanted.cap.max_inline_data;
    return std::make_unique<IbverbsQueuePair>(opened_, pair);
  }

  int completion_fd() const override { return opened_->channel->fd; }
  void DrainCompletionEvents() override {
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    while (ibv_get_cq_event(opened_->channel, &queue, &unused) == 0) ibv_ack_cq_events(queue, 1);
  }

  int event_fd() const override { return opened_->context->async_fd; }
  bool NextEvent(NicEvent* event) override {
    ibv_async_event found{};
    while (ibv_get_async_event(opened_->context, &found) == 0) {
      const bool ours = Translate(found, event);
      ibv_ack_async_event(&found);
      if (ours) return true;
    }
    return false;
  }

 private:
  absl::StatusOr<NicMemory> Registered(const char* call, ibv_mr* region) {
    if (region == nullptr) return Failed(call, name(), errno);
    return NicMemory{reinterpret_cast<uint64_t>(region), region->lkey, region->rkey};
  }

  static bool Translate(const ibv_async_event& from, NicEvent* to) {
    *to = NicEvent{};
    switch (from.event_type) {
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
        to->kind = from.event_type == IBV_EVENT_PORT_ACTIVE ? NicEventKind::kPortUp
                                                            : NicEventKind::kPortDown;
        to->port = from.element.port_num;
        return true;
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_LID_CHANGE:
        to->kind = NicEventKind::kAddressChanged;
        to->port = from.element.port_num;
        return true;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        to->kind = NicEventKind::kQueuePairFatal;
        to->queue_pair = from.element.qp->qp_num;
        return true;
      case IBV_EVENT_CQ_ERR:
        to->kind = NicEventKind::kCompletionQueueLost;
        return true;
      case IBV_EVENT_DEVICE_FATAL:
        to->kind = NicEventKind::kDeviceLost;
        return true;
      default:
        return false;
    }
  }

  std::shared_ptr<Opened> opened_;
};

class IbverbsNic final : public Nic {
 public:
  absl::StatusOr<std::vector<std::string>> DeviceNames() override {
    // Before anything else of libibverbs: a child that is forked must not take registered pages
    // along.
    if (const int error = ibv_fork_init(); error != 0 && error != ENOSYS) {
      return Failed("ibv_fork_init", "this host", error);
    }
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (list == nullptr) {
      return absl::UnavailableError(
          absl::StrCat("ibv_get_device_list: ", std::strerror(errno),
                       errno == ENOSYS ? "; the kernel has no RDMA (is ib_uverbs loaded?)" : ""));
    }
    std::vector<std::string> out;
    out.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) out.emplace_back(ibv_get_device_name(list[i]));
    ibv_free_device_list(list);
    return out;
  }

  absl::StatusOr<std::unique_ptr<NicDevice>> Open(absl::string_view name) override {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    auto opened = std::make_shared<Opened>();
    opened->name = std::string(name);
    int error = ENODEV;
    for (int i = 0; list != nullptr && i < count; ++i) {
      if (opened->name != ibv_get_device_name(list[i])) continue;
      errno = ENODEV;
      opened->context = ibv_open_device(list[i]);
      error = errno;
    }
    if (list != nullptr) ibv_free_device_list(list);
    if (opened->context == nullptr) return Failed("ibv_open_device", opened->name, error);
    opened->domain = ibv_alloc_pd(opened->context);
    if (opened->domain == nullptr) return Failed("ibv_alloc_pd", opened->name, errno);
    opened->channel = ibv_create_comp_channel(opened->context);
    if (opened->channel == nullptr) return Failed("ibv_create_comp_channel", opened->name, errno);
    for (int fd : {opened->channel->fd, opened->context->async_fd}) {
      if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
        return ErrnoStatus(errno, absl::StrCat("make the events of ", name, " non-blocking"));
      }
    }
    return std::make_unique<IbverbsDevice>(std::move(opened));
  }
};

}  // namespace

std::unique_ptr<Nic> MakeIbverbsNic() { return std::make_unique<IbverbsNic>(); }

}  // namespace weft::net
