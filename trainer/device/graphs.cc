#include "trainer/device/graphs.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/module.h"
#include "base/status.h"
#include "trainer/device/device.h"

namespace weft::train {
namespace {

absl::Status Checked(const WeftGraphTable& table, int result) {
  return result == 0 ? absl::OkStatus() : absl::InternalError(table.LastError());
}
// A call that frees part of a graph has failed: that memory is lost, and the run goes on.
void Complain(const WeftGraphTable& table, int result) {
  if (result != 0) WEFT_LOG_WARN("a CUDA graph leaves something behind: ", table.LastError());
}

class TableGraph final : public DeviceGraph {
 public:
  TableGraph(const WeftGraphTable* table, at::Device device, uint64_t pool, WeftGraph* graph)
      : table_(*table), device_(device), pool_(pool), graph_(graph) {}
  ~TableGraph() override {
    Complain(table_, table_.Destroy(graph_));
    Complain(table_, table_.PoolRelease(device_.index(), pool_));
  }
  absl::Status Launch() override {
    return Checked(table_, table_.Launch(graph_, CurrentStream(device_)));
  }

 private:
  const WeftGraphTable& table_;
  const at::Device device_;
  const uint64_t pool_;
  WeftGraph* const graph_;
};

class TableGraphs final : public GraphDevice {
 public:
  TableGraphs(const WeftGraphTable* table, at::Device device) : table_(*table), device_(device) {
    if (device.is_cpu()) return;
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }

  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
      uint64_t pool, const std::function<absl::Status()>& body) override {
    WeftStream* const launches = CurrentStream(device_);
    std::optional<c10::StreamGuard> guard;
    if (stream_) {
      // What LibTorch keeps for the default stream is of no use to the pool.
      c10::getDeviceAllocator(device_.type())->emptyCache();
      guard.emplace(*stream_);
    }
    WeftStream* const stream = CurrentStream(device_);
    WEFT_RETURN_IF_ERROR(Checked(table_, table_.PoolBegin(device_.index(), pool, stream)));
    absl::StatusOr<WeftGraph*> graph = CaptureInPool(stream, launches, body);
    absl::Status ended = Checked(table_, table_.PoolEnd(device_.index(), pool));
    if (graph.ok() && !ended.ok()) {
      Complain(table_, table_.Destroy(*graph));
      graph = std::move(ended);
    }
    if (!graph.ok()) {
      Complain(table_, table_.PoolRelease(device_.index(), pool));
      return graph.status();
    }
    return std::make_unique<TableGraph>(&table_, device_, pool, *graph);
  }

 private:
  absl::StatusOr<WeftGraph*> CaptureInPool(WeftStream* stream, WeftStream* launches,
                                           const std::function<absl::Status()>& body) {
    WEFT_RETURN_IF_ERROR(Checked(table_, table_.CaptureBegin(stream)));
    absl::Status status = body();
    WeftCapture* capture = nullptr;
    const int ended = table_.CaptureEnd(stream, &capture);
    // The body's own error comes first: CaptureEnd's is that the capture has failed.
    if (status.ok()) status = Checked(table_, ended);
    WeftGraph* graph = nullptr;
    if (status.ok()) status = Checked(table_, table_.Instantiate(capture, launches, &graph));
    if (capture != nullptr) Complain(table_, table_.CaptureDestroy(capture));
    if (!status.ok()) return status;
    return graph;
  }

  const WeftGraphTable& table_;
  const at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GraphDevice>> OpenGraphs(at::Device gpu) {
  constexpr char kName[] = "libweft-train-cuda.so";
  WEFT_ASSIGN_OR_RETURN(
      void* const handle,
      LoadModule(kName, "it is built by `tools/dev build cuda` on a machine with a CUDA toolkit"));
  const auto entry =
      reinterpret_cast<decltype(&weft_graph_table)>(dlsym(handle, "weft_graph_table"));
  const WeftGraphTable* const table = entry == nullptr ? nullptr : entry();
  if (table == nullptr || table->version != kWeftGraphVersion ||
      table->size != sizeof(WeftGraphTable)) {
    return absl::FailedPreconditionError(absl::StrCat(
        kName, " is of another version than this program; build both from one source"));
  }
  // The library calls LibTorch's allocator by the headers that it was built with.
  if (absl::string_view(table->libtorch) != TORCH_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat(
        kName, " was built for LibTorch ", table->libtorch, ", this program for ", TORCH_VERSION));
  }
  return GraphsBy(table, gpu);
}

std::unique_ptr<GraphDevice> GraphsBy(const WeftGraphTable* table, at::Device device) {
  return std::make_unique<TableGraphs>(table, device);
}

}  // namespace weft::train
