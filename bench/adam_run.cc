// One update of Adam for each line on stdin, so that a script can time it in turn with something
// else.
//
//   adam_run split|whole ELEMENTS THREADS
//
// The states are what bench/adam_bench updates; lr 1e-3, weight decay 0.01 (AdamW), no clipping.
// Answers each line with the seconds that the update took and, to show that the work is the same,
// the bf16 weight of the last element.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

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

}  // namespace
}  // namespace penstock::kernels

int main(int argc, char** argv) {
  using penstock::kernels::Master;
  const std::string master = argc == 4 ? argv[1] : "";
  if (master != "split" && master != "whole") {
    fmt::print(stderr, "usage: adam_run split|whole ELEMENTS THREADS\n");
    return 2;
  }
  penstock::kernels::Run(master == "split" ? Master::kSplit : Master::kWhole, std::stoull(argv[2]),
                         std::stoull(argv[3]));
}
