// One update of Adam for each line on stdin, so that a script can time it in turn with something
// else.
//
//   adam_run split|whole|copy ELEMENTS THREADS
//
// copy: instead of the update, a plain copy of as many bytes, to measure memory bandwidth. The
// states are those of bench/adam_bench; lr 1e-3, weight decay 0.01 (AdamW), no clipping. Answers
// each line with the seconds that the update took and, to show that the work is the same, the bf16
// weight of the last element.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "base/mapping.h"
#include "bench/adam_states.h"
#include "kernels/state/adam.h"

namespace penstock::kernels {
namespace {

float LastWeight(const OptimizerTile& tile) {
  return ToFloat(tile.weight.As<BFloat16>()[tile.weight.size() - 1]);
}

void Run(Master master, uint64_t elements, uint64_t threads) {
  const AdamStates states(master, elements);
  std::string line;
  for (uint64_t t = 1; std::getline(std::cin, line); ++t) {
    const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.01}, 1e-3, t, 1);
    const double seconds = Seconds([&] { UpdateInParallel(threads, scalars, states.tiles()); });
    fmt::print("{} {}\n", seconds, double{LastWeight(states.tiles().back())});
    std::fflush(stdout);
  }
}

void RunCopy(uint64_t elements, uint64_t threads) {
  const uint64_t bytes = elements * BytesPerElement(Master::kSplit) / 2;  // read, and written
  const Mapping from = Mapping::Create(Bytes{bytes}).value();
  const Mapping to = Mapping::Create(Bytes{bytes}).value();
  // Each thread touches first what it copies, so that the memory is of its node.
  InParallel(threads, bytes, [&](uint64_t first, uint64_t count) {
    std::memset(from.data() + first, 1, count);
    std::memset(to.data() + first, 0, count);
  });
  std::string line;
  while (std::getline(std::cin, line)) {
    const double seconds = Seconds([&] {
      InParallel(threads, bytes, [&](uint64_t first, uint64_t count) {
        std::memcpy(to.data() + first, from.data() + first, count);
      });
    });
    fmt::print("{} {}\n", seconds, static_cast<int>(to.data()[bytes - 1]));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace penstock::kernels

int main(int argc, char** argv) {
  using penstock::kernels::Master;
  const std::string what = argc == 4 ? argv[1] : "";
  if (what != "split" && what != "whole" && what != "copy") {
    fmt::print(stderr, "usage: adam_run split|whole|copy ELEMENTS THREADS\n");
    return 2;
  }
  const uint64_t elements = std::stoull(argv[2]);
  const uint64_t threads = std::stoull(argv[3]);
  if (what == "copy") {
    penstock::kernels::RunCopy(elements, threads);
  } else {
    penstock::kernels::Run(what == "split" ? Master::kSplit : Master::kWhole, elements, threads);
  }
}
