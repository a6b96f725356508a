// Where the I/O of a state is placed, on machines that hwloc is told about by HWLOC_XMLFILE.
#include "zero/engine/state_io.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_quota.h"
#include "base/topology.h"
#include "device/device.h"
#include "kernels/state/state_operators.h"
#include "tests/aio/wrapped_engine.h"
#include "tests/zero/toy_model.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// The CPUs of this process that a mask of 32 bits has.
std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < 32; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

/// What hangs on the nodes that follow.
constexpr char kGpuOfNode0[] = "0000:80:00.0";
constexpr char kGpuOfNode1[] = "0000:81:00.0";

/// A package that is a NUMA node of one core. A PCI device hangs on it, which is a drive unless
/// `drive` is empty.
std::string Node(int node, int cpu, const std::string& drive) {
  const std::string sets = fmt::format(
      R"(cpuset="{0:#x}" complete_cpuset="{0:#x}" nodeset="{1:#x}" complete_nodeset="{1:#x}")",
      1U << cpu, 1U << node);
  const int id = 100 * (node + 1);
  std::string xml = fmt::format(R"(<object type="Package" os_index="{0}" {1} gp_index="{2}">)"
                                R"(<object type="NUMANode" os_index="{0}" {1} gp_index="{3}"/>)"
                                R"(<object type="Core" os_index="{0}" {1} gp_index="{4}">)"
                                R"(<object type="PU" os_index="{5}" {1} gp_index="{6}"/></object>)",
                                node, sets, id, id + 1, id + 2, cpu, id + 3);
  xml += fmt::format(
      R"(<object type="Bridge" gp_index="{0}" bridge_type="0-1" depth="0" bridge_pci="0000:[8{2}-8{2}]">)"
      R"(<object type="PCIDev" gp_index="{1}" pci_busid="0000:8{2}:00.0" )"
      R"(pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="0.000000">)",
      id + 4, id + 5, node);
  if (!drive.empty()) {
    xml += fmt::format(R"(<object type="OSDev" gp_index="{}" name="{}" osdev_type="0"/>)", id + 6,
                       drive);
  }
  return xml + "</object></object></object>";
}

/// A machine of one node of one core, whose hardware threads are `cpus`.
std::string OneCore(const std::vector<int>& cpus) {
  unsigned all = 0;
  std::string threads;
  const auto sets = [](unsigned mask) {
    return fmt::format(
        R"(cpuset="{0:#x}" complete_cpuset="{0:#x}" nodeset="0x1" complete_nodeset="0x1")", mask);
  };
  for (const int cpu : cpus) {
    all |= 1U << cpu;
    threads += fmt::format(R"(<object type="PU" os_index="{0}" {1} gp_index="{2}"/>)", cpu,
                           sets(1U << cpu), 10 + cpu);
  }
  return fmt::format(
      R"(<?xml version="1.0" encoding="UTF-8"?>)"
      "\n"
      R"(<!DOCTYPE topology SYSTEM "hwloc2.dtd">)"
      "\n"
      R"(<topology version="2.0"><object type="Machine" os_index="0" allowed_cpuset="{0:#x}" )"
      R"(allowed_nodeset="0x1" {1} gp_index="1"><object type="NUMANode" os_index="0" {1} )"
      R"(gp_index="2"/><object type="Core" os_index="0" {1} gp_index="3">{2}</object></object>)"
      R"(</topology>)",
      all, sets(all), threads);
}

/// The CPUs of the threads of this process that have that name.
std::vector<std::string> CpusOfThreads(const std::string& name) {
  std::vector<std::string> cpus;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string line;
    if (!std::getline(status, line) || line != "Name:\t" + name) continue;
    const std::string key = "Cpus_allowed_list:\t";
    while (std::getline(status, line) && !line.starts_with(key)) continue;
    cpus.push_back(line.substr(key.size()));
  }
  return cpus;
}

/// A machine of the nodes 0, 1, ... with one of `cpus` each; the drive hangs on the last one.
std::string Machine(const std::vector<int>& cpus, const std::string& drive) {
  unsigned all = 0;
  std::string nodes;
  for (size_t i = 0; i < cpus.size(); ++i) {
    all |= 1U << cpus[i];
    nodes += Node(static_cast<int>(i), cpus[i], i + 1 == cpus.size() ? drive : "");
  }
  return fmt::format(
      R"(<?xml version="1.0" encoding="UTF-8"?>)"
      "\n"
      R"(<!DOCTYPE topology SYSTEM "hwloc2.dtd">)"
      "\n"
      R"(<topology version="2.0"><object type="Machine" os_index="0" cpuset="{0:#x}" )"
      R"(complete_cpuset="{0:#x}" allowed_cpuset="{0:#x}" nodeset="{1:#x}" )"
      R"(complete_nodeset="{1:#x}" allowed_nodeset="{1:#x}" gp_index="1">{2}</object></topology>)",
      all, (1U << cpus.size()) - 1, nodes);
}

/// The CPU device, as if it were a GPU that hangs on a bus.
class DeviceOnABus final : public device::Device {
 public:
  explicit DeviceOnABus(std::string pci_bus_id) : pci_bus_id_(std::move(pci_bus_id)) {}

  device::Kind kind() const override { return cpu_->kind(); }
  const std::string& name() const override { return cpu_->name(); }
  std::string pci_bus_id() const override { return pci_bus_id_; }
  Bytes limit() const override { return cpu_->limit(); }
  Bytes used() const override { return cpu_->used(); }
  Bytes peak() const override { return cpu_->peak(); }
  Result<std::unique_ptr<device::Stream>> CreateStream(const std::string& name) override {
    return cpu_->CreateStream(name);
  }

 protected:
  Result<std::byte*> Take(Bytes size, const std::string& what) override {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer, cpu_->Allocate(size, what));
    std::byte* const data = buffer.data();
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void Give(std::byte* data, Bytes) override { buffers_.erase(data); }
  Status Pin(std::span<std::byte>) override { return {}; }
  void Unpin(std::byte*) override {}

 private:
  const std::string pci_bus_id_;
  std::unique_ptr<device::Device> cpu_ = device::CreateCpuDevice({.memory = 64_MiB}).value();
  std::map<std::byte*, device::DeviceBuffer> buffers_;
};

class StateIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::absolute(
        std::string("state_io_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "state");
    real_nodes_ = ReadTopology().value().nodes;
    drives_ = BlockDevicesOf(folder_);
    if (drives_.size() != 1) GTEST_SKIP() << folder_ << " is on no single block device";
    cpus_ = UsableCpus();
    if (cpus_.size() < 2) GTEST_SKIP() << "two nodes need two CPUs, and there is " << cpus_.size();
    cpus_.resize(2);
  }
  void TearDown() override {
    ::unsetenv("HWLOC_XMLFILE");  // NOLINT(concurrency-mt-unsafe): no thread is running
    std::filesystem::remove_all(folder_);
  }

  /// From here on, hwloc sees this machine.
  void Pretend(const std::string& machine) const {
    const std::string xml = folder_ / "machine.xml";
    std::ofstream(xml) << machine;
    ::setenv("HWLOC_XMLFILE", xml.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  }

  /// Of a small state. The CPUs that engines were asked to run on go to `engine_cpus_`.
  EngineOptions Options(Tier home) {
    EngineOptions options;
    options.model = ToySpec(1, 5000);
    options.host_memory = 64_MiB;
    options.config.tile_elements = 4096;
    options.config.parameter_home = home;
    options.config.optimizer_home = home;
    options.config.aio.kind = aio::EngineKind::kThreads;
    options.state_folders = {folder_ / "state"};
    options.warn = [](const std::string&) {};
    options.create_io = [this](size_t, const aio::EngineOptions& engine, std::string* notice) {
      engine_cpus_.push_back(engine.cpus);
      EXPECT_TRUE(engine.on_stall) << "a hanging drive would not be reported";
      return aio::CreateEngine(engine, notice);
    };
    return options;
  }

  /// Makes the I/O of a small state on that machine.
  Result<StateIo> CreateOn(const std::string& machine, const EngineOptions& options,
                           const std::string& gpu = {}) {
    Pretend(machine);
    const device::Kind kind = gpu.empty() ? device::Kind::kCpu : device::Kind::kCuda;
    return StateIo::Create(options, MakeLayout(options.model, DType::kBFloat16, 4096),
                           {.kind = kind, .pci_bus_id = gpu}, slab_);
  }

  std::filesystem::path folder_;
  std::vector<int> real_nodes_;
  std::vector<std::string> drives_;
  std::vector<int> cpus_;
  offload::Slab slab_ = offload::Slab::Create(1_MiB).value();
  std::vector<std::vector<int>> engine_cpus_;
};

TEST_F(StateIoTest, EnginesRunOnTheCpusNearTheDriveAndMemoryIsPlacedThere) {
  const Result<StateIo> io = CreateOn(Machine(cpus_, drives_[0]), Options(Tier::kNvme));
  ASSERT_TRUE(io.ok()) << io.error().message;
  EXPECT_THAT(engine_cpus_, ElementsAre(ElementsAre(cpus_[1])));
  EXPECT_THAT(io->notices, Contains(HasSubstr("run on node 1, host memory lies on node 1")));
  // Where this machine has no node 1, the kernel refuses: that it was asked is then in the notice.
  const bool placed = std::ranges::find(real_nodes_, 1) != real_nodes_.end();
  EXPECT_THAT(io->notices, Contains(HasSubstr("memory does not: placing")).Times(placed ? 0 : 1));
}

TEST_F(StateIoTest, OnOneNodeNothingIsPlacedAndANoticeSaysSo) {
  const Result<StateIo> io = CreateOn(Machine({cpus_[0]}, drives_[0]), Options(Tier::kNvme));
  ASSERT_TRUE(io.ok()) << io.error().message;
  EXPECT_THAT(engine_cpus_, ElementsAre(IsEmpty()));
  EXPECT_THAT(io->notices, Contains(HasSubstr("one NUMA node")).Times(1));
}

TEST_F(StateIoTest, WithoutAHomeOnNvmeNothingIsPlaced) {
  const Result<StateIo> io = CreateOn(Machine(cpus_, drives_[0]), Options(Tier::kHost));
  ASSERT_TRUE(io.ok()) << io.error().message;
  EXPECT_THAT(engine_cpus_, ElementsAre(IsEmpty()));
  EXPECT_THAT(io->notices, Each(Not(HasSubstr("node"))));
}

TEST_F(StateIoTest, MemoryIsPlacedNearTheGpuTooAndIoThreadsAreNot) {
  const Result<StateIo> io =
      CreateOn(Machine(cpus_, drives_[0]), Options(Tier::kNvme), kGpuOfNode0);
  ASSERT_TRUE(io.ok()) << io.error().message;
  EXPECT_THAT(engine_cpus_, ElementsAre(ElementsAre(cpus_[1])));
  EXPECT_THAT(io->notices,
              Contains(HasSubstr("run on node 1, GPU 0000:80:00.0 hangs on node 0, host memory "
                                 "lies on nodes 0, 1")));
}

TEST_F(StateIoTest, WhereStepsUseNoDriveMemoryIsPlacedNearTheGpuAlone) {
  EngineOptions at_home_on_the_host = Options(Tier::kHost);
  EngineOptions on_simulated_drives = Options(Tier::kNvme);
  on_simulated_drives.config.aio.simulate = aio::SimulatedDrive{};
  for (const EngineOptions& options : {at_home_on_the_host, on_simulated_drives}) {
    engine_cpus_.clear();
    const Result<StateIo> io = CreateOn(Machine(cpus_, drives_[0]), options, kGpuOfNode0);
    ASSERT_TRUE(io.ok()) << io.error().message;
    EXPECT_THAT(engine_cpus_, ElementsAre(IsEmpty()));
    EXPECT_THAT(io->notices, Contains(StartsWith("2 NUMA nodes: GPU 0000:80:00.0 hangs on node 0, "
                                                 "host memory lies on node 0")));
  }
}

/// An engine that says of its registered memory what a test wants.
class SayingEngine final : public aio::WrappedEngine {
 public:
  SayingEngine(std::unique_ptr<aio::Engine> base, std::string line)
      : WrappedEngine(std::move(base)), line_(std::move(line)) {}
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>>) override {
    return line_;
  }

 private:
  const std::string line_;
};

TEST_F(StateIoTest, WhereTheMemlockLimitHoldsForSomeDrivesOneLineSaysForWhich) {
  const auto notices = [this](const std::vector<std::string>& lines) {
    EngineOptions options = Options(Tier::kNvme);
    options.state_folders.clear();
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::filesystem::path drive = folder_ / fmt::format("drive{}", i);
      std::filesystem::create_directory(drive);
      options.state_folders.push_back(drive);
    }
    options.probe = [](aio::Engine&, const aio::File&, Bytes) { return Result<double>(1); };
    options.create_io = [&lines](size_t path, const aio::EngineOptions& aio,
                                 std::string* notice) -> Result<std::unique_ptr<aio::Engine>> {
      PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> base, aio::CreateEngine(aio, notice));
      return std::unique_ptr<aio::Engine>(
          std::make_unique<SayingEngine>(std::move(base), lines[path]));
    };
    Result<StateIo> io = CreateOn(Machine({cpus_[0]}, drives_[0]), options);
    EXPECT_TRUE(io.ok());
    std::vector<std::byte> memory(4096);
    const std::span<std::byte> parts[] = {memory};
    EXPECT_TRUE(io->RegisterMemory(parts, options.state_folders).ok());
    std::vector<std::string> said = io->notices;
    std::erase_if(
        said, [](const std::string& line) { return line.find("registered") == std::string::npos; });
    return said;
  };
  const std::string drive = (folder_ / "drive").string();
  EXPECT_THAT(notices({"registered: 8", "not registered: low", "registered: 8",
                       "not registered: "
                       "low"}),
              ElementsAre(fmt::format("for 2 of 4 drives ({0}1, {0}3) not registered: low; for 2 "
                                      "of 4 drives ({0}0, {0}2) registered: 8",
                                      drive)));
  EXPECT_THAT(notices({"registered: 8", "registered: 8"}), ElementsAre("registered: 8"));
  EXPECT_THAT(notices({"", ""}), IsEmpty());
}

TEST_F(StateIoTest, ThreadsOfAnEngineRunWhereTheyWerePlannedAndTheirMakerAnywhere) {
  if (CpuQuota().value_or(2) < 2) GTEST_SKIP() << "a container's quota of less than 2 CPUs";
  const std::vector<int> before = UsableCpus();
  Pretend(OneCore(cpus_));
  const auto device = device::CreateCpuDevice({.memory = 64_MiB}).value();
  const auto operators = kernels::CreateStateOperators(device->kind(), 1).value();
  const auto engine = Engine::Create(Options(Tier::kNvme), *device, *operators);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  ASSERT_TRUE((*engine)->compute_stream().Synchronize().ok()) << "it has its name";
  const std::string first = std::to_string(cpus_[0]);
  const std::string second = std::to_string(cpus_[1]);
  EXPECT_THAT(CpusOfThreads("compute"), ElementsAre(first));
  EXPECT_THAT(CpusOfThreads("optimizer-0"), ElementsAre(second));
  EXPECT_THAT(CpusOfThreads("penstock-io"), ElementsAre(second));
  EXPECT_EQ(UsableCpus(), before);
  EXPECT_THAT((*engine)->notices(),
              Contains(fmt::format("threads: 1 compute on CPU {}, 1 optimizer on CPU {}, I/O on "
                                   "CPU {}",
                                   first, second, second)));
}

TEST_F(StateIoTest, EveryEnginePlacesMemoryNearItsDevice) {
  Pretend(Machine(cpus_, drives_[0]));
  for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    DeviceOnABus device(kGpuOfNode1);
    const auto operators = kernels::CreateStateOperators(device.kind(), 1).value();
    const auto engine = Engine::Create(Options(home), device, *operators);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    EXPECT_THAT((*engine)->notices(), Contains(HasSubstr("GPU 0000:81:00.0 hangs on node 1")));
  }
}

}  // namespace
}  // namespace penstock::zero
