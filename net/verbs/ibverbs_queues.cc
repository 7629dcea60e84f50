#include "net/verbs/ibverbs_queues.h"

#include <dlfcn.h>
#include <endian.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace weft::net {

absl::Status VerbsFailed(const char* call, const std::string& device, int error) {
  std::string hint;
  if (error == ENOMEM) {
    hint = "; is the limit of locked memory (ulimit -l) too low, or the device out of queues?";
  } else if (error == EACCES || error == EPERM) {
    hint = "; may this process open /dev/infiniband/*?";
  } else if (error == EFAULT) {
    hint = "; is it a device's memory, and no nvidia_peermem loaded?";
  } else if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    hint = "; no route to, or no answer from, the remote address: is it of this GID's network?";
  }
  return absl::UnavailableError(
      absl::StrCat(call, " on ", device, ": ", std::strerror(error), hint));
}

namespace {

constexpr unsigned kSignaled = IBV_SEND_SIGNALED, kInline = IBV_SEND_INLINE;
constexpr size_t kPostMax = 8;  // work requests handed over at once

class IbverbsCompletionQueue final : public NicCompletionQueue {
 public:
  IbverbsCompletionQueue(std::shared_ptr<VerbsDevice> opened, ibv_cq* queue)
      : opened_(std::move(opened)), queue_(queue) {}
  ~IbverbsCompletionQueue() override { ibv_destroy_cq(queue_); }
  ibv_cq* get() const { return queue_; }

  absl::StatusOr<size_t> Poll(absl::Span<NicCompletion> out) override {
    std::array<ibv_wc, 32> found;
    const int room = static_cast<int>(std::min(out.size(), found.size()));
    const int count = ibv_poll_cq(queue_, room, found.data());
    if (count < 0) return VerbsFailed("ibv_poll_cq", opened_->name, EIO);
    for (int i = 0; i < count; ++i) {
      const ibv_wc& one = found[static_cast<size_t>(i)];
      NicCompletion& to = out[static_cast<size_t>(i)];
      to = NicCompletion{};
      to.id = one.wr_id;
      to.status = static_cast<NicStatus>(one.status);
      to.vendor_error = one.vendor_err;
      if (one.status != IBV_WC_SUCCESS) continue;
      to.receive = (one.opcode & IBV_WC_RECV) != 0;
      if (!to.receive) continue;
      to.immediate = be32toh(one.imm_data);
      to.bytes = one.byte_len;
    }
    return static_cast<size_t>(count);
  }

  absl::Status Arm() override {
    const int error = ibv_req_notify_cq(queue_, 0);
    return error == 0 ? absl::OkStatus() : VerbsFailed("ibv_req_notify_cq", opened_->name, error);
  }

 private:
  std::shared_ptr<VerbsDevice> opened_;
  ibv_cq* queue_;
};

class IbverbsReceiveQueue final : public NicReceiveQueue {
 public:
  IbverbsReceiveQueue(std::shared_ptr<VerbsDevice> opened, ibv_srq* queue)
      : opened_(std::move(opened)), queue_(queue) {}
  ~IbverbsReceiveQueue() override { ibv_destroy_srq(queue_); }
  ibv_srq* get() const { return queue_; }

  absl::Status Post(absl::Span<const NicReceive> receives) override {
    for (size_t from = 0; from < receives.size(); from += kPostMax) {
      std::array<ibv_recv_wr, kPostMax> requests{};
      std::array<ibv_sge, kPostMax> pieces{};
      const size_t count = std::min(kPostMax, receives.size() - from);
      for (size_t i = 0; i < count; ++i) {
        const NicReceive& one = receives[from + i];
        pieces[i] = {reinterpret_cast<uintptr_t>(one.local), one.length, one.local_key};
        requests[i].wr_id = one.id;
        requests[i].sg_list = &pieces[i];
        requests[i].num_sge = 1;
        requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
      }
      ibv_recv_wr* bad = nullptr;
      const int error = ibv_post_srq_recv(queue_, requests.data(), &bad);
      if (error != 0) return VerbsFailed("ibv_post_srq_recv", opened_->name, error);
    }
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<VerbsDevice> opened_;
  ibv_srq* queue_;
};

ibv_mtu MtuOf(int bytes) {
  if (bytes >= 4096) return IBV_MTU_4096;
  if (bytes >= 2048) return IBV_MTU_2048;
  if (bytes >= 1024) return IBV_MTU_1024;
  return bytes >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

class IbverbsQueuePair final : public NicQueuePair {
 public:
  IbverbsQueuePair(std::shared_ptr<VerbsDevice> opened, ibv_qp* pair)
      : opened_(std::move(opened)), pair_(pair) {}
  ~IbverbsQueuePair() override { ibv_destroy_qp(pair_); }
  uint32_t number() const override { return pair_->qp_num; }

  absl::Status ToInit(int port, int pkey_index) override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = static_cast<uint8_t>(port);
    to.pkey_index = static_cast<uint16_t>(pkey_index);
    // What may be read its registration says.
    if (is_reliable()) to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
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
    to.min_rnr_timer = 12;  // 0.64 ms, until a message that found no receive is sent again
    to.ah_attr.port_num = static_cast<uint8_t>(path.port);
    to.ah_attr.sl = static_cast<uint8_t>(path.service_level);
    if (path.global) {
      to.ah_attr.is_global = 1;
      std::memcpy(&to.ah_attr.grh.dgid, path.remote_gid.data(), path.remote_gid.size());
      to.ah_attr.grh.flow_label = path.flow_label;
      to.ah_attr.grh.sgid_index = static_cast<uint8_t>(path.gid_index);
      to.ah_attr.grh.hop_limit = 255;
      to.ah_attr.grh.traffic_class = static_cast<uint8_t>(path.traffic_class);
    }
    if (!path.ethernet) to.ah_attr.dlid = path.remote_lid;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (is_reliable()) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return Modify("ibv_modify_qp to RTR", &to, mask);
  }

  absl::Status ToReadyToSend(const NicPath& path) override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RTS;
    to.timeout = static_cast<uint8_t>(path.timeout);
    to.retry_cnt = static_cast<uint8_t>(path.retry_count);
    to.rnr_retry = 7;
    to.sq_psn = path.local_psn;
    to.max_rd_atomic = 1;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (is_reliable()) {
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    const absl::Status moved = Modify("ibv_modify_qp to RTS", &to, mask);
    if (moved.ok() && path.udp_source_port != 0) SetSourcePort(path.udp_source_port);
    return moved;
  }

  absl::Status ToError() override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_ERR;
    return Modify("ibv_modify_qp to ERR", &to, IBV_QP_STATE);
  }

  absl::Status ToReset() override {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_RESET;
    return Modify("ibv_modify_qp to RESET", &to, IBV_QP_STATE);
  }

  absl::StatusOr<std::string> State() override {
    static constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    ibv_qp_attr attributes{};
    ibv_qp_init_attr unused{};
    const int error = ibv_query_qp(pair_, &attributes, IBV_QP_STATE, &unused);
    if (error != 0) return VerbsFailed("ibv_query_qp", opened_->name, error);
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
      if (error != 0) return VerbsFailed("ibv_post_send", opened_->name, error);
    }
    return absl::OkStatus();
  }

  absl::Status PostSends(absl::Span<const NicSend> sends) override {
    for (size_t from = 0; from < sends.size(); from += kPostMax) {
      std::array<ibv_send_wr, kPostMax> requests{};
      std::array<ibv_sge, kPostMax> pieces{};
      const size_t count = std::min(kPostMax, sends.size() - from);
      for (size_t i = 0; i < count; ++i) {
        const NicSend& one = sends[from + i];
        pieces[i] = {reinterpret_cast<uintptr_t>(one.local), one.length, one.local_key};
        requests[i].wr_id = one.id;
        requests[i].sg_list = &pieces[i];
        requests[i].num_sge = 1;
        requests[i].opcode = IBV_WR_SEND;
        requests[i].send_flags = one.signaled ? kSignaled : 0u;
        requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
      }
      ibv_send_wr* bad = nullptr;
      const int error = ibv_post_send(pair_, requests.data(), &bad);
      if (error != 0) return VerbsFailed("ibv_post_send", opened_->name, error);
    }
    return absl::OkStatus();
  }

  absl::Status PostRead(const NicRead& read) override {
    ibv_sge piece = {reinterpret_cast<uintptr_t>(read.local), read.length, read.local_key};
    ibv_send_wr request{};
    request.wr_id = read.id;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = kSignaled;
    request.wr.rdma.remote_addr = read.remote;
    request.wr.rdma.rkey = read.remote_key;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(pair_, &request, &bad);
    return error == 0 ? absl::OkStatus() : VerbsFailed("ibv_post_send", opened_->name, error);
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
      if (error != 0) return VerbsFailed("ibv_post_recv", opened_->name, error);
    }
    return absl::OkStatus();
  }

 private:
  bool is_reliable() const { return pair_->qp_type == IBV_QPT_RC; }
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

  // What cannot be set is what the flow label gives.
  void SetSourcePort(uint16_t port) {
    static const auto modify = reinterpret_cast<int (*)(ibv_qp*, uint16_t)>(
        dlsym(dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL), "mlx5dv_modify_qp_udp_sport"));
    const int error = modify == nullptr ? ENOSYS : modify(pair_, port);
    static std::atomic_flag said;
    if (error == 0 || said.test_and_set()) return;
    WEFT_LOG_WARN("verbs: mlx5dv_modify_qp_udp_sport on ", opened_->name, ": ",
                  std::strerror(error), "; flow labels give the UDP source ports",
                  " (verbs.source_port_by)");
  }

  absl::Status Modify(const char* doing, ibv_qp_attr* to, int mask) {
    const int error = ibv_modify_qp(pair_, to, mask);
    return error == 0 ? absl::OkStatus() : VerbsFailed(doing, opened_->name, error);
  }

  std::shared_ptr<VerbsDevice> opened_;
  ibv_qp* pair_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NicCompletionQueue>> MakeIbverbsQueue(
    std::shared_ptr<VerbsDevice> device, int depth) {
  ibv_cq* queue = ibv_create_cq(device->context, depth, nullptr, device->channel, 0);
  if (queue == nullptr) return VerbsFailed("ibv_create_cq", device->name, errno);
  return std::make_unique<IbverbsCompletionQueue>(std::move(device), queue);
}

absl::StatusOr<std::unique_ptr<NicReceiveQueue>> MakeIbverbsReceives(
    std::shared_ptr<VerbsDevice> device, uint32_t depth) {
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = depth;
  wanted.attr.max_sge = 1;
  ibv_srq* queue = ibv_create_srq(device->domain, &wanted);
  if (queue == nullptr) return VerbsFailed("ibv_create_srq", device->name, errno);
  return std::make_unique<IbverbsReceiveQueue>(std::move(device), queue);
}

absl::StatusOr<std::unique_ptr<NicQueuePair>> MakeIbverbsPair(std::shared_ptr<VerbsDevice> device,
                                                              NicQueuePairOptions* options) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = static_cast<IbverbsCompletionQueue*>(options->completions)->get();
  wanted.recv_cq = wanted.send_cq;
  wanted.qp_type = options->service == NicService::kReliable ? IBV_QPT_RC : IBV_QPT_UC;
  if (options->receives != nullptr) {
    wanted.srq = static_cast<IbverbsReceiveQueue*>(options->receives)->get();
  }
  wanted.cap = {options->send_depth, options->receive_depth, 1, 1, options->inline_bytes};
  ibv_qp* pair = ibv_create_qp(device->domain, &wanted);
  if (pair == nullptr && errno == EINVAL && options->inline_bytes > 0) {  // too much to ask for
    wanted.cap = {options->send_depth, options->receive_depth, 1, 1, 0};
    pair = ibv_create_qp(device->domain, &wanted);
  }
  if (pair == nullptr) return VerbsFailed("ibv_create_qp", device->name, errno);
  options->inline_bytes = wanted.cap.max_inline_data;
  return std::make_unique<IbverbsQueuePair>(std::move(device), pair);
}

}  // namespace weft::net
