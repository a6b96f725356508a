// How much of the bus do copies from and to the slab get, and how much of the matrix rate do GELU
// with its products, attention and the head get, also with a vocabulary that is not a multiple of
// 64?
//
// The ceilings are measured in the same run: one large copy each way, and the product of a layer of
// the same width (for attention, the fastest of them). Operands are random, because zeros make a
// GPU faster. Copies are of tiles of 2 MiB (a million 16-bit weights) in memory that is registered
// once, as the engine makes them. Prints a table. Needs a GPU with 8 GiB and 2 GiB of host memory.
//
//   cuda_bench [--attention-only]
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>

#include "bench/cuda_attention.h"
#include "bench/cuda_products.h"
#include "bench/cuda_timing.h"
#include "device/device.h"

namespace penstock {
namespace {

using bench::Print;
using bench::Time;
using device::DeviceBuffer;
using device::Stream;

constexpr Bytes kSlab = 1_GiB;
constexpr Bytes kTile = 2_MiB;

struct Slab {
  device::HostBuffer host;
  DeviceBuffer device;
};

/// Calls copy(offset, size) for all of the slab in pieces.
void InPieces(Bytes piece, const std::function<void(uint64_t, Bytes)>& copy) {
  for (Bytes at; at < kSlab; at += piece) copy(at.value, piece);
}

Status MeasureCopies(device::Device& device, const Slab& slab) {
  PENSTOCK_ASSIGN(const auto in, device.CreateStream("copy-in"));
  PENSTOCK_ASSIGN(const auto out, device.CreateStream("copy-out"));
  const auto to_device = [&](uint64_t at, Bytes size) {
    in->CopyToDevice(slab.device.data() + at, slab.host.data() + at, size);
  };
  const auto to_host = [&](uint64_t at, Bytes size) {
    out->CopyToHost(slab.host.data() + at, slab.device.data() + at, size);
  };
  const double gigabytes = static_cast<double>(kSlab.value) / 1e9;
  PENSTOCK_ASSIGN(const double in_whole, Time(*in, [&] { InPieces(kSlab, to_device); }));
  PENSTOCK_ASSIGN(const double out_whole, Time(*out, [&] { InPieces(kSlab, to_host); }));
  PENSTOCK_ASSIGN(const double in_tiles, Time(*in, [&] { InPieces(kTile, to_device); }));
  PENSTOCK_ASSIGN(const double out_tiles, Time(*out, [&] { InPieces(kTile, to_host); }));
  // Each direction has its half of the slab.
  PENSTOCK_ASSIGN(const double both, Time(*in, [&] {
                    for (Bytes at; at < Bytes{kSlab.value / 2}; at += kTile) {
                      to_device(at.value, kTile);
                      to_host(at.value + kSlab.value / 2, kTile);
                    }
                    in->Wait(out->Record());
                  }));
  Print("to the device, one copy", gigabytes / in_whole, "GB/s", gigabytes / in_whole);
  Print("to the host, one copy", gigabytes / out_whole, "GB/s", gigabytes / out_whole);
  Print("to the device, tiles", gigabytes / in_tiles, "GB/s", gigabytes / in_whole);
  Print("to the host, tiles", gigabytes / out_tiles, "GB/s", gigabytes / out_whole);
  Print("both ways at once, tiles", gigabytes / both, "GB/s",
        gigabytes / in_whole + gigabytes / out_whole);
  return {};
}

Status Run(bool attention_only) {
  PENSTOCK_ASSIGN(const auto device, device::CreateCudaDevice({.memory = 4_GiB}));
  fmt::print("{}\n", device->name());
  Slab slab;
  PENSTOCK_ASSIGN(slab.host, device->AllocateHost(kSlab));
  PENSTOCK_ASSIGN(slab.device, device->Allocate(kSlab, "the slab's copy"));
  // bf16 of magnitude 1/2 to 2, either sign.
  uint64_t state = 1;
  for (uint64_t i = 0; i < kSlab / 2_B; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    slab.host.as<uint16_t>()[i] = static_cast<uint16_t>(0x3f00 | (state >> 33 & 0x80ff));
  }
  if (!attention_only) PENSTOCK_TRY(MeasureCopies(*device, slab));
  PENSTOCK_ASSIGN(const auto stream, device->CreateStream("copy-in"));
  double ceiling = 0;
  for (const bench::ProductShape& shape : bench::kProductShapes) {
    stream->CopyToDevice(slab.device.data(), slab.host.data(), kSlab);
    PENSTOCK_TRY(stream->Synchronize());
    PENSTOCK_ASSIGN(const double product, bench::MeasureProducts(*device, slab.device, shape));
    ceiling = std::max(ceiling, product);
    if (attention_only) continue;
    // GPT-2's, and the next multiple of 64.
    for (const uint64_t vocabulary : {50257, 50304}) {
      PENSTOCK_TRY(bench::MeasureHead(*device, slab.device, shape, vocabulary, product));
    }
  }
  stream->CopyToDevice(slab.device.data(), slab.host.data(), kSlab);
  PENSTOCK_TRY(stream->Synchronize());
  return bench::MeasureAttention(*device, slab.device, slab.host, ceiling);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) try {
  const bool attention_only = argc == 2 && std::strcmp(argv[1], "--attention-only") == 0;
  if (argc > 1 && !attention_only) {
    std::fprintf(stderr, "usage: cuda_bench [--attention-only]\n");
    return 2;
  }
  const penstock::Status status = penstock::Run(attention_only);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_bench: %s\n", status.error().message.c_str());
  return 3;
} catch (const std::exception& exception) {
  std::fprintf(stderr, "cuda_bench: %s\n", exception.what());
  return 3;
}
