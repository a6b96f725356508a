// How fast is the I/O engine on this file? One run, for bench/fio_ratio.py to compare with fio.
//
//   aio_run --file F --operation read|write --size BYTES --engine io_uring|libaio|threads
//           --block-size BYTES --queue-depth N --thread-count N --direct 0|1
// Moves BYTES through the file from its start on, keeping N blocks in flight, with io_uring in
// registered memory, or not at all. Prints {"gbps", "cpu_s_per_gb", "registration"} as JSON.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "aio/probe.h"
#include "bench/outcome.h"

namespace penstock::aio {
namespace {

struct Arguments {
  std::string file;
  std::string operation;
  std::string engine;
  uint64_t size = 0;
  uint64_t block_size = 0;
  int queue_depth = 0;
  int thread_count = 1;
  bool direct = true;
};

struct Outcome {
  Probe probe;
  std::string registration;
};

Result<Outcome> Run(const Arguments& arguments) {
  const std::map<std::string, EngineKind> kinds = {{"io_uring", EngineKind::kUring},
                                                   {"libaio", EngineKind::kLibaio},
                                                   {"threads", EngineKind::kThreads}};
  const EngineOptions options = {.kind = kinds.at(arguments.engine),
                                 .block_size = Bytes{arguments.block_size},
                                 .queue_depth = arguments.queue_depth,
                                 .thread_count = arguments.thread_count,
                                 .registered_buffers = arguments.engine == "io_uring"
                                                           ? Registration::kOn
                                                           : Registration::kOff};
  PENSTOCK_ASSIGN(ProbeFile file,
                  ProbeFile::Open(arguments.file, arguments.direct,
                                  options.block_size * static_cast<uint64_t>(options.queue_depth)));
  PENSTOCK_ASSIGN(ProbeRig rig, ProbeRig::Create(options, &file));
  PENSTOCK_ASSIGN(
      const Probe probe,
      rig.Measure(arguments.operation == "read" ? Direction::kRead : Direction::kWrite,
                  {.bytes = Bytes{arguments.size}, .time = Seconds::max()}, [] { return false; }));
  return Outcome{.probe = probe, .registration = rig.registration()};
}

Result<int> Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("One run of the I/O engine over a file");
  app.add_option("--file", arguments.file)->required();
  app.add_option("--operation", arguments.operation)
      ->required()
      ->check(CLI::IsMember({"read", "write"}));
  app.add_option("--engine", arguments.engine)
      ->required()
      ->check(CLI::IsMember({"io_uring", "libaio", "threads"}));
  app.add_option("--size", arguments.size)->required();
  app.add_option("--block-size", arguments.block_size)->required();
  app.add_option("--queue-depth", arguments.queue_depth)->required();
  app.add_option("--thread-count", arguments.thread_count);
  app.add_option("--direct", arguments.direct);
  CLI11_PARSE(app, argc, argv);
  PENSTOCK_ASSIGN(const Outcome outcome, Run(arguments));
  // The line has neither quotes nor backslashes.
  fmt::print("{{\"gbps\": {}, \"cpu_s_per_gb\": {}, \"registration\": \"{}\"}}\n",
             outcome.probe.gbps, outcome.probe.cpu_s_per_gb, outcome.registration);
  return 0;
}

}  // namespace
}  // namespace penstock::aio

int main(int argc, char** argv) {
  return penstock::bench::OutcomeOf("aio_run", [&] { return penstock::aio::Main(argc, argv); });
}
