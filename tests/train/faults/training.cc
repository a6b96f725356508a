#include "tests/train/faults/training.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/unique_fd.h"
#include "offload/checksum.h"
#include "run/run_folder.h"
#include "tests/aio/wrapped_engine.h"
#include "tests/train/faults/bad_units.h"
#include "train/process/log.h"
#include "train/trainer/trainer.h"
#include "zero/engine/engine.h"
#include "zero/states/committed_state.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Eight tiles. Of three paths, one ends with a tile without padding: what is written behind it
// shows.
constexpr char kModel[] =
    R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 1, "n_positions": 16,
        "vocab_size": 256, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0})";
constexpr std::chrono::seconds kPatience{60};

/// The writes of all paths of a rank.
class SeenWrites {
 public:
  void Add(size_t path, const aio::Request& request) {
    if (request.operation != aio::Operation::kWrite) return;
    const std::lock_guard lock(mutex_);
    writes_.push_back({path, request.offset.value, request.buffer.size()});
  }
  json ToJson() {
    const std::lock_guard lock(mutex_);
    return writes_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::array<uint64_t, 3>> writes_;
};

class SeeingEngine final : public aio::WrappedEngine {
 public:
  SeeingEngine(std::unique_ptr<Engine> base, size_t path, SeenWrites& seen)
      : WrappedEngine(std::move(base)), path_(path), seen_(seen) {}
  aio::Ticket Submit(aio::Request request) override {
    seen_.Add(path_, request);
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  const size_t path_;
  SeenWrites& seen_;
};

std::string WriteConfig(const TrainingOptions& options) {
  const std::string& folder = options.folder;
  json home = {{"device", options.setup.device}};
  if (options.setup.device == "nvme") {
    json paths = json::array();
    for (uint32_t i = 0; i < options.setup.paths; ++i) {
      paths.push_back(fmt::format("{}/drive{}", folder, i));
    }
    home["nvme_path"] = paths;
  }
  json config = {
      {"train_micro_batch_size_per_gpu", 2},
      {"gradient_accumulation_steps", 1},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.03}}}}},
      {"zero_optimization", {{"stage", 3}, {"offload_param", home}, {"offload_optimizer", home}}},
      {"penstock",
       {{"commit_every_steps", 1},
        {"commit_every_seconds", 0},
        {"compute_threads", 1},
        {"optimizer_threads", 1},
        {"tile_elements", 4096},
        {"tier_split", false},
        {"verify_commits", true},
        {"aio", {{"engine", "threads"}}}}}};
  const std::string path = folder + "/config.json";
  std::ofstream(path) << config;
  return path;
}

/// Has the fault befall the engine of its path.
void AddFault(const TrainingOptions& options, uint32_t rank, size_t path,
              aio::EngineOptions& engine) {
  const std::optional<Site>& site = options.site;
  if (!site || site->rank != rank || site->path != path) return;
  engine.faults = aio::FaultPlan{
      .faults = {{.kind = options.kind, .first_block = site->number, .at = site->unit}},
      .on_bad_unit = AddBadUnit};
}

TrainOptions OptionsOf(const TrainingOptions& options, uint32_t rank, SeenWrites& seen) {
  TrainOptions train;
  if (!options.resume) train.model = options.folder + "/model";
  train.configs = {options.folder + "/config.json"};
  train.data = options.folder + "/data.txt";
  train.out = options.folder + "/run";
  train.model = options.folder + "/model";
  train.resume = options.resume;
  train.steps = options.steps;
  train.device = DeviceChoice::kCpu;
  train.device_memory = 8_MiB;
  train.host_memory = 64_MiB;
  train.change_engine = [&options, rank, &seen](zero::EngineOptions& engine) {
    engine.create_io = [&options, rank, &seen](
                           size_t path, aio::EngineOptions aio,
                           std::string* notice) -> Result<std::unique_ptr<aio::Engine>> {
      AddFault(options, rank, path, aio);
      PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> base, aio::CreateEngine(aio, notice));
      return std::unique_ptr<aio::Engine>(
          std::make_unique<SeeingEngine>(std::move(base), path, seen));
    };
    // Shares that do not depend on the machine.
    engine.probe = [](aio::Engine&, const aio::File&, Bytes) { return Result<double>(1); };
  };
  return train;
}

/// A hash of every master and moment of the last commit, in the order of the model.
Result<uint64_t> HashStates(const std::string& run) {
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(run));
  PENSTOCK_ASSIGN(const StateFiles files, CommittedFiles(info, run));
  PENSTOCK_ASSIGN(const auto state, zero::CommittedState::Open(files.paths()));
  std::vector<uint64_t> hashes;
  const auto& modules = state->model().modules;
  for (uint32_t m = 0; m < modules.size(); ++m) {
    for (size_t t = 0; t < modules[m].tensors.size(); ++t) {
      const auto& tensor = modules[m].tensors[t];
      for (const zero::StateKind kind : zero::StatesOf(state->model().group(tensor.group))) {
        std::vector<float> values(tensor.elements);
        PENSTOCK_TRY(state->ReadState(kind, zero::ModuleId{m}, t, 0, values));
        hashes.push_back(offload::Checksum(std::as_bytes(std::span(values))));
      }
    }
  }
  return offload::Checksum(std::as_bytes(std::span(hashes)));
}

// NOLINTBEGIN(concurrency-mt-unsafe): of a process that has one thread
void SetEnvironment(const TrainingOptions& options, uint32_t rank, uint16_t port) {
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  if (options.setup.ranks == 1) return;
  const std::string size = std::to_string(options.setup.ranks);
  ::setenv("WORLD_SIZE", size.c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", size.c_str(), 1);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}
// NOLINTEND(concurrency-mt-unsafe)

json TrainHere(const TrainingOptions& options, uint32_t rank) {
  SeenWrites seen;
  json report = {{"ok", false}};
  const auto summary = Train(OptionsOf(options, rank, seen));
  report["writes"] = seen.ToJson();
  if (!summary.ok()) {
    report["error"] = summary.error().message;
    return report;
  }
  report["steps"] = *summary ? (*summary)->loop.steps : 0;
  report["ok"] = true;
  if (rank != 0) return report;
  // Rank 0 alone, and only of an end without a fault: others are judged by what resumes from them.
  if (options.site) return report;
  const Result<uint64_t> states = HashStates(options.folder + "/run");
  report["ok"] = states.ok();
  if (states.ok()) {
    report["states"] = *states;
  } else {
    report["error"] = "after the end: " + states.error().message;
  }
  return report;
}

/// A port that nobody listens on; another program may take it meanwhile.
uint16_t FreePort() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  PENSTOCK_CHECK(::bind(socket.get(), any, size) == 0);
  PENSTOCK_CHECK(::getsockname(socket.get(), any, &size) == 0);
  return ntohs(address.sin_port);
}

/// The process of a rank.
struct Child {
  pid_t process = -1;
  UniqueFd report;  ///< the end of a pipe from which it is read
  std::string text;
  bool ended = false;
};

Child Start(const TrainingOptions& options, uint32_t rank, uint16_t port) {
  int ends[2];
  PENSTOCK_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  const std::string log = fmt::format("{}/log{}", options.folder, rank);
  const pid_t process = ::fork();
  PENSTOCK_CHECK(process >= 0);
  if (process == 0) {
    ::close(ends[0]);
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDERR_FILENO);
    SetEnvironment(options, rank, port);
    PENSTOCK_CHECK(::signal(SIGPIPE, SIG_IGN) != SIG_ERR);  // as the program has it
    StartLogging();
    const std::string text = TrainHere(options, rank).dump();
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(ends[1], text.data() + done, text.size() - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  return {.process = process, .report = UniqueFd(ends[0])};
}

/// Reads what the children report until all have ended. False if that takes too long.
bool AwaitReports(std::vector<Child>& children) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    std::vector<pollfd> polled;
    for (const Child& child : children) {
      polled.push_back({.fd = child.ended ? -1 : child.report.get(), .events = POLLIN});
    }
    if (std::ranges::all_of(children, &Child::ended)) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    if (::poll(polled.data(), polled.size(), static_cast<int>(left.count())) <= 0) continue;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      std::array<char, 65536> buffer;
      const ssize_t n = ::read(polled[i].fd, buffer.data(), buffer.size());
      if (n > 0) children[i].text.append(buffer.data(), static_cast<size_t>(n));
      if (n <= 0) children[i].ended = true;
    }
  }
}

void TakeReport(const json& report, uint32_t rank, Ended& ended) {
  for (const json& write : report.value("writes", json::array())) {
    ended.writes.push_back({.rank = rank,
                            .path = write[0].get<uint32_t>(),
                            .offset = FileOffset{write[1].get<uint64_t>()},
                            .size = Bytes{write[2].get<uint64_t>()}});
  }
  if (rank != 0) return;
  ended.ok = report.at("ok").get<bool>();
  ended.error = report.value("error", "");
  ended.steps = report.value("steps", uint64_t{0});
  ended.states = report.value("states", uint64_t{0});
}

/// What the program says as the reason of its end: a rank may end before Train returns.
std::string ErrorIn(const std::string& log) {
  constexpr std::string_view kBegin = "penstock: error: ";
  const size_t begin = log.rfind(kBegin);
  if (begin == std::string::npos) return "";
  const size_t end = log.find('\n', begin);
  return log.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

void MakeFolder(const std::string& folder) {
  fs::remove_all(folder);
  for (const char* name : {"model", "drive0", "drive1", "drive2"}) {
    fs::create_directories(fs::path(folder) / name);
  }
  std::ofstream(folder + "/model/config.json") << kModel;
  std::ofstream data(folder + "/data.txt");
  for (int i = 0; i < 60; ++i) data << "a bigram learns which letter follows which; ";
}

Ended TrainOnce(const TrainingOptions& options) {
  WriteConfig(options);
  const uint16_t port = options.setup.ranks > 1 ? FreePort() : uint16_t{0};
  std::vector<Child> children;
  for (uint32_t rank = 0; rank < options.setup.ranks; ++rank) {
    children.push_back(Start(options, rank, port));
  }
  Ended ended;
  ended.hung = !AwaitReports(children);
  for (uint32_t rank = 0; rank < options.setup.ranks; ++rank) {
    Child& child = children[rank];
    if (ended.hung) ::kill(child.process, SIGKILL);
    int status = 0;
    ::waitpid(child.process, &status, 0);
    if (WIFSIGNALED(status) && !ended.hung) ended.signal = WTERMSIG(status);
    const json report = json::parse(child.text, nullptr, /*allow_exceptions=*/false);
    if (report.is_object()) TakeReport(report, rank, ended);
    ended.log += ReadFile(fmt::format("{}/log{}", options.folder, rank));
  }
  if (!ended.ok && ended.error.empty()) ended.error = ErrorIn(ended.log);
  return ended;
}

std::optional<uint64_t> RowsOf(const std::string& folder) {
  if (!fs::exists(folder + "/run")) return std::nullopt;
  const std::string rows = ReadFile(folder + "/run/metrics.jsonl");
  return static_cast<uint64_t>(std::ranges::count(rows, '\n'));
}

}  // namespace penstock::train
