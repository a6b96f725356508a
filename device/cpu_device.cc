#include "device/cpu_device.h"

#include <sys/utsname.h>

#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

#include "device/cpu_stream.h"

namespace penstock::device {
namespace {

/// Returns the kernel's name of the processor; the machine type if it has none (Arm).
std::string ProcessorName() {
  constexpr std::string_view kKey = "model name";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(kKey) && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown processor";
}

std::string Describe() {
  const unsigned cores = std::thread::hardware_concurrency();
  return fmt::format("cpu ({}, {} core{})", ProcessorName(), cores, cores == 1 ? "" : "s");
}

}  // namespace

CpuDevice::CpuDevice(Mapping memory, const DeviceOptions& options)
    : name_(Describe()),
      meter_(options.meter),
      memory_(std::move(memory)),
      arena_(memory_.data(), options.memory) {}

Result<std::unique_ptr<Stream>> CpuDevice::CreateStream(const std::string& name) {
  PENSTOCK_ASSIGN(std::unique_ptr<Stream> stream, ThreadStream::Create(name, arena_, meter_));
  return stream;
}

Result<std::byte*> CpuDevice::Take(Bytes size, const std::string& what) {
  return arena_.Take(size, what);
}

void CpuDevice::Give(std::byte* data, Bytes size) { arena_.Give(data, size); }

Result<std::unique_ptr<Device>> CreateCpuDevice(const DeviceOptions& options) {
  PENSTOCK_ASSIGN(Mapping memory, Mapping::Create(options.memory));
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(std::move(memory), options));
}

}  // namespace penstock::device
