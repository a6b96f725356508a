// How fast are bf16 gradients of a GPU added up in host memory, with one thread and with two?
//
//   gradient_sums sums|norm [PAIRS] [MILLIONS_OF_ELEMENTS]
//
// Two engines of the C interface, with states in host memory, that differ in the number of their
// threads, and take turns. Each gets three micro-batches of gradients through the fake driver,
// whose copies, like a GPU's, take no CPU time. With "sums" a turn lasts until they are added up in
// fp32 and rounded; with "norm" until the norm of all of them is known, which other threads compute
// beside it. Sums are larger than the caches; all memory is written before the first turn. The
// ceiling beside it is memcpy by as many threads, in bytes that are read and written. To compare
// with another libpenstock.so, name its folder in LD_LIBRARY_PATH ("norm" only: one that rounds a
// unit when it is complete does not round with "sums").
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "front/penstock.h"
#include "tests/front/fake_cuda/fake_cuda.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr uint32_t kMicroBatches = 3;
constexpr uint64_t kTensor = 4 << 20;  // elements

void Check(int code) {
  if (code == PENSTOCK_OK) return;
  fmt::print(stderr, "gradient_sums: {}\n", penstock_error());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): one thread
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A folder for a state file, which goes with the object.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstock_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

enum class Until { kSums, kNorm };

/// Each unit has a large tensor, and a small one, without whose last gradient the unit is not
/// complete: no norm is computed.
class Engine {
 public:
  Engine(uint32_t units, int threads) : units_(units) {
    const json config{{"train_micro_batch_size_per_gpu", 1},
                      {"gradient_accumulation_steps", kMicroBatches},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
                      {"zero_optimization",
                       {{"stage", 3},
                        {"offload_optimizer", {{"device", "cpu"}}},
                        {"offload_param", {{"device", "cpu"}}}}},
                      {"penstock", {{"compute_threads", threads}, {"optimizer_threads", threads}}}};
    json model{{"groups", {{{"name", "all"}, {"dtype", "bf16"}}}}, {"units", json::array()}};
    for (uint32_t unit = 0; unit < units; ++unit) {
      const std::string name = std::to_string(unit);
      model["units"].push_back({{"name", name},
                                {"repeated", true},
                                {"tensors",
                                 {{{"name", name + ".w"}, {"shape", {kTensor}}},
                                  {{"name", name + ".b"}, {"shape", {1}}}}}});
    }
    const json options{{"folders", {folder_.path()}}, {"cuda", true}};
    Check(penstock_create(config.dump().c_str(), model.dump().c_str(), options.dump().c_str(),
                          &engine_));
    const std::vector<uint16_t> zeros(kTensor);
    const void* const tensors[] = {zeros.data(), zeros.data()};
    for (uint32_t unit = 0; unit < units; ++unit) Check(penstock_fill(engine_, unit, tensors));
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() { penstock_close(engine_); }

  /// Adds up the gradients of a step; returns the seconds that it took.
  double AddUp(const void* gradient, CUstream stream, Until until) {
    return Seconds([&] {
      for (uint32_t i = 0; i < kMicroBatches * units_; ++i) {
        const uint32_t unit = i % units_;
        Check(penstock_gradient_on(engine_, unit, 0, gradient, PENSTOCK_BFLOAT16, stream));
        if (until == Until::kNorm) {
          Check(penstock_gradient_on(engine_, unit, 1, gradient, PENSTOCK_BFLOAT16, stream));
        }
      }
      double norm = 0;
      int finite = 0;
      if (until == Until::kNorm) Check(penstock_norm(engine_, &norm, &finite));
      Check(penstock_drop_step(engine_));
    });
  }

 private:
  Folder folder_;
  uint32_t units_;
  penstock_engine* engine_ = nullptr;
};

/// Bytes that a turn reads and writes, for each element: gradients of two bytes; sums of four,
/// which the first micro-batch only writes and the last one only reads; what is rounded, and read
/// for the norm.
constexpr double Traffic(Until until) {
  constexpr double kSums = (2 + 4) + (2 + 4 + 4) + (2 + 4 + 2);
  return until == Until::kSums ? kSums : kSums + 2;
}

/// Bytes a second that memcpy reads and writes, in blocks that no cache holds.
double CopyRate(int threads) {
  constexpr size_t kBlock = 64 << 20;
  std::vector<std::vector<std::byte>> memory(2 * static_cast<size_t>(threads),
                                             std::vector<std::byte>(kBlock));
  const auto all = [&] {
    std::vector<std::thread> others;
    for (size_t i = 0; i < memory.size(); i += 2) {
      others.emplace_back(
          [&memory, i] { std::memcpy(memory[i].data(), memory[i + 1].data(), memory[i].size()); });
    }
    for (std::thread& other : others) other.join();
  };
  all();
  return 2.0 * kBlock * threads / Seconds(all);
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void Measure(Until until, size_t pairs, uint32_t units) {
  CUdeviceptr gradient = 0;
  CUstream stream = nullptr;
  cuCtxSetCurrent(fake_cuda_context());
  cuMemAlloc_v2(&gradient, 2 * kTensor);
  cuStreamCreate(&stream, 1);
  const auto* const values = reinterpret_cast<const void*>(gradient);
  Engine one(units, 1);
  Engine two(units, 2);
  for (Engine* engine : {&one, &two}) engine->AddUp(values, stream, until);
  fake_cuda_free_copies(1);
  const auto elements = static_cast<double>(kTensor * units);
  std::vector<double> ratios;
  std::vector<double> rates[2];
  std::vector<double> copies[2];
  for (size_t pair = 0; pair < pairs; ++pair) {
    double seconds[2] = {};
    for (const size_t i : {pair % 2, 1 - pair % 2}) {
      seconds[i] = (i == 0 ? one : two).AddUp(values, stream, until);
      rates[i].push_back(Traffic(until) * elements / seconds[i] / 1e9);
      copies[i].push_back(CopyRate(static_cast<int>(i) + 1) / 1e9);
    }
    ratios.push_back(seconds[0] / seconds[1]);
    fmt::print("pair {}: one thread {:.3f} s, two {:.3f} s, ratio {:.3f}\n", pair + 1, seconds[0],
               seconds[1], ratios.back());
    std::fflush(stdout);
  }
  for (const size_t i : {0U, 1U}) {
    fmt::print("{}: {:.2f} GB/s read and written, {:.2f} of memcpy's {:.2f}\n",
               i == 0 ? "one thread" : "two threads", Median(rates[i]),
               Median(rates[i]) / Median(copies[i]), Median(copies[i]));
  }
  fmt::print("median ratio {:.3f}, from {:.3f} to {:.3f}, {} pairs, {:.0f} million elements\n",
             Median(ratios), std::ranges::min(ratios), std::ranges::max(ratios), pairs,
             elements / 1e6);
  cuStreamSynchronize(stream);
  cuStreamDestroy_v2(stream);
  cuMemFree_v2(gradient);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends then
  const std::string what = argc > 1 ? argv[1] : "";
  const uint64_t pairs = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 9;
  const uint64_t millions = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 64;
  if ((what != "sums" && what != "norm") || argc > 4 || pairs == 0 || millions < 4 ||
      millions > 4096) {
    fmt::print(stderr,
               "usage: gradient_sums sums|norm [PAIRS] [MILLIONS_OF_ELEMENTS, 4 or more]\n");
    return 2;
  }
  using penstock::Until;
  penstock::Measure(what == "sums" ? Until::kSums : Until::kNorm, pairs,
                    static_cast<uint32_t>(millions / 4));
}
