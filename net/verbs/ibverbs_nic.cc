#include "net/verbs/ibverbs_nic.h"

#include <fcntl.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/roce/devices.h"
#include "net/verbs/ibverbs_queues.h"

namespace weft::net {
namespace {

constexpr unsigned kRelaxed = IBV_ACCESS_RELAXED_ORDERING;
constexpr size_t kGidsMax = 512;

unsigned FlagsOf(const NicAccess& access) {
  unsigned flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (access.readable) flags |= IBV_ACCESS_REMOTE_READ;
  return access.relaxed ? flags | kRelaxed : flags;
}

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
  explicit IbverbsDevice(std::shared_ptr<VerbsDevice> opened) : opened_(std::move(opened)) {}
  const std::string& name() const override { return opened_->name; }
  std::string pci_address() const override { return PciAddress(name()); }
  bool ResolvesAddresses() const override { return true; }

  absl::StatusOr<NicLimits> Limits() override {
    ibv_device_attr device{};
    const int error = ibv_query_device(opened_->context, &device);
    if (error != 0) return VerbsFailed("ibv_query_device", name(), error);
    return NicLimits{device.phys_port_cnt, device.max_qp, device.max_qp_wr, device.max_cqe};
  }

  absl::StatusOr<NicPort> QueryPort(int port) override {
    ibv_port_attr found{};
    const int error = ibv_query_port(opened_->context, static_cast<uint8_t>(port), &found);
    if (error != 0) return VerbsFailed("ibv_query_port", name(), error);
    NicPort out;
    out.number = port;
    out.active = found.state == IBV_PORT_ACTIVE;
    out.state = ibv_port_state_str(found.state);
    out.ethernet = found.link_layer == IBV_LINK_LAYER_ETHERNET;
    out.needs_global = (found.flags & IBV_QPF_GRH_REQUIRED) != 0;
    out.mtu = 128 << found.active_mtu;
    out.gbps = GbpsOf(found);
    out.lid = found.lid;
    return out;
  }

  absl::StatusOr<std::vector<NicGid>> QueryGids(int port) override {
    std::vector<ibv_gid_entry> table(kGidsMax);
    const ssize_t count = ibv_query_gid_table(opened_->context, table.data(), table.size(), 0);
    if (count < 0) return VerbsFailed("ibv_query_gid_table", name(), static_cast<int>(-count));
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

  absl::StatusOr<NicMemory> Register(void* data, size_t size, const NicAccess& access) override {
    return Registered("ibv_reg_mr", ibv_reg_mr(opened_->domain, data, size, FlagsOf(access)));
  }

  absl::StatusOr<NicMemory> RegisterDmaBuf(int fd, uint64_t offset, size_t size, void* data,
                                           const NicAccess& access) override {
    return Registered("ibv_reg_dmabuf_mr", ibv_reg_dmabuf_mr(opened_->domain, offset, size,
                                                             reinterpret_cast<uintptr_t>(data), fd,
                                                             static_cast<int>(FlagsOf(access))));
  }

  // As NCCL asks: whoever knows DMA-BUFs finds fault with the descriptor (EBADF).
  absl::Status ProbeDmaBuf() override {
    ibv_mr* none = ibv_reg_dmabuf_mr(opened_->domain, 0, 0, 0, /*fd=*/-1, 0);
    if (none != nullptr) ibv_dereg_mr(none);
    if (none != nullptr || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT)) {
      return absl::OkStatus();
    }
    return absl::UnimplementedError(
        absl::StrCat("ibv_reg_dmabuf_mr on ", name(), ": ", std::strerror(errno)));
  }

  void Deregister(const NicMemory& memory) override {
    ibv_dereg_mr(reinterpret_cast<ibv_mr*>(memory.handle));  // NOLINT: it is one
  }

  absl::StatusOr<std::unique_ptr<NicCompletionQueue>> CreateCompletionQueue(int depth) override {
    return MakeIbverbsQueue(opened_, depth);
  }
  absl::StatusOr<std::unique_ptr<NicReceiveQueue>> CreateReceiveQueue(uint32_t depth) override {
    return MakeIbverbsReceives(opened_, depth);
  }
  absl::StatusOr<std::unique_ptr<NicQueuePair>> CreateQueuePair(
      NicQueuePairOptions* options) override {
    return MakeIbverbsPair(opened_, options);
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
    if (region == nullptr) return VerbsFailed(call, name(), errno);
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
      case IBV_EVENT_SRQ_ERR:
        to->kind = NicEventKind::kReceiveQueueLost;
        return true;
      case IBV_EVENT_DEVICE_FATAL:
        to->kind = NicEventKind::kDeviceLost;
        return true;
      default:
        return false;
    }
  }

  std::shared_ptr<VerbsDevice> opened_;
};

class IbverbsNic final : public Nic {
 public:
  absl::StatusOr<std::vector<std::string>> DeviceNames() override {
    // A child that is forked must not take registered pages along. Too late once this process has
    // registered memory, as another library may have.
    static std::atomic_flag said;
    const int error = ibv_fork_init();
    if (error != 0 && error != ENOSYS && !said.test_and_set()) {
      WEFT_LOG_WARN("verbs: ", VerbsFailed("ibv_fork_init", "this host", error).message(),
                    "; processes that are forked from this one must not write to its memory");
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
    auto opened = std::make_shared<VerbsDevice>();
    opened->name = std::string(name);
    int error = ENODEV;
    for (int i = 0; list != nullptr && i < count; ++i) {
      if (opened->name != ibv_get_device_name(list[i])) continue;
      errno = ENODEV;
      opened->context = ibv_open_device(list[i]);
      error = errno;
    }
    if (list != nullptr) ibv_free_device_list(list);
    if (opened->context == nullptr) return VerbsFailed("ibv_open_device", opened->name, error);
    opened->domain = ibv_alloc_pd(opened->context);
    if (opened->domain == nullptr) return VerbsFailed("ibv_alloc_pd", opened->name, errno);
    opened->channel = ibv_create_comp_channel(opened->context);
    if (opened->channel == nullptr)
      return VerbsFailed("ibv_create_comp_channel", opened->name, errno);
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
