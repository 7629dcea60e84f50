// A controller of net/cc in the place of one of the simulator's.
#include <algorithm>
#include <memory>
#include <utility>

#include "net/multipath/simulated.h"
#include "net/multipath/simulated_time.h"

namespace weft::net::multipath {
namespace {

using topology::CongestionControl;
using topology::FlowFacts;
using topology::packet::Picoseconds;

class SimulatedController final : public CongestionControl {
 public:
  SimulatedController(std::unique_ptr<Controller> controller, int64_t packet)
      : controller_(std::move(controller)), packet_(packet) {}
  void OnAck(const Ack& ack) override {
    absl::Time now = ToTime(ack.now);
    controller_->Advance(now);
    controller_->OnSent(now, Bytes(ack.bytes));  // as much leaves as is acknowledged
    controller_->OnAck({.now = now,
                        .rtt = ToTime(ack.round_trip) - absl::UnixEpoch(),
                        .acked = Bytes(ack.bytes),
                        .in_flight = Bytes(ack.in_flight),
                        .marked = ack.marked});
  }
  void OnLoss(Picoseconds now, int64_t bytes, int64_t in_flight) override {
    timeouts_ = 0;
    controller_->OnLoss(ToTime(now), Bytes(bytes), Bytes(in_flight));
  }
  void OnTimeout(Picoseconds now) override { controller_->OnTimeout(ToTime(now), ++timeouts_); }
  // The simulator sends while less than the window is in flight; a controller lets a packet go if
  // all of it fits, or if nothing is in flight.
  int64_t window() const override {
    return std::max<int64_t>(1, controller_->window().count() - packet_ + 1);
  }
  double rate() const override { return controller_->rate().bytes_per_second() * 1e-12; }

 private:
  std::unique_ptr<Controller> controller_;
  const int64_t packet_;
  int timeouts_ = 0;
};

}  // namespace

std::function<std::unique_ptr<CongestionControl>(const FlowFacts&)> SimulatedControllers(
    const ControllerSpec& spec, int hops) {
  return [spec, hops](const FlowFacts& facts) {
    PathFacts path{.base_rtt = ToTime(facts.round_trip) - absl::UnixEpoch(),
                   .bandwidth = Bandwidth::BytesPerSecond(facts.bytes_per_picosecond * 1e12),
                   .packet = Bytes(facts.packet_bytes),
                   .hops = hops,
                   .trimming = facts.trimming};
    return std::unique_ptr<CongestionControl>(
        std::make_unique<SimulatedController>(MakeController(spec, path), facts.packet_bytes));
  };
}

}  // namespace weft::net::multipath
