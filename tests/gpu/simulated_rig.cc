#include <chrono>

#include "record/cuda/simulated_device.h"
#include "tests/gpu/rig.h"

namespace moetape::inline v0::cuda {
namespace {

class SimulatedRig final : public Rig {
 public:
  std::string name() const override { return "simulated"; }
  bool measures() const override { return false; }
  std::shared_ptr<Device> device() override { return device_; }
  StreamHandle make_stream() override { return device_->make_stream(); }
  void begin_capture(StreamHandle stream) override { device_->begin_capture(stream); }
  std::unique_ptr<Graph> end_capture(StreamHandle stream) override {
    return std::make_unique<SimulatedGraph>(*device_, device_->end_capture(stream));
  }
  void delay(StreamHandle) override {}  // nothing runs before it is waited for
  void synchronize(StreamHandle stream) override { device_->run(stream); }
  int64_t check_manners() override { return 0; }
  void launch(const GateArgs& args, StreamHandle stream) override { run(args, stream); }
  void launch(const CopyLayerArgs& args, StreamHandle stream) override { run(args, stream); }
  void launch(const ScatterArgs& args, StreamHandle stream) override { run(args, stream); }
  void start_clock(StreamHandle stream) override {
    synchronize(stream);
    start_ = std::chrono::steady_clock::now();
  }
  double stop_clock(StreamHandle stream) override {
    synchronize(stream);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  class SimulatedGraph final : public Graph {
   public:
    SimulatedGraph(SimulatedDevice& device, SimulatedDevice::Graph graph)
        : device_(device), graph_(std::move(graph)) {}
    void replay(StreamHandle stream) override { device_.replay(graph_, stream); }
    int64_t num_nodes() const override { return std::ssize(graph_); }

   private:
    SimulatedDevice& device_;
    SimulatedDevice::Graph graph_;
  };

  template <class Args>
  void run(const Args& args, StreamHandle stream) {
    device_->call(
        [args] {
          for (int64_t i = 0; i < num_items(args); ++i) run_item(args, i);
        },
        stream);
  }

  std::shared_ptr<SimulatedDevice> device_ =
      std::make_shared<SimulatedDevice>(SimulatedDevice::Mode::kByHand);
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

std::unique_ptr<Rig> make_simulated_rig() { return std::make_unique<SimulatedRig>(); }

}  // namespace moetape::inline v0::cuda
