// "aio", as DeepSpeed has it, and our own keys under "penstock".
#include "config/sections.h"

namespace penstock::config {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTileElements = int64_t{1} << 40;
constexpr int64_t kMaxThreads = 4096;
constexpr int64_t kMaxSnapshots = 1000000;
/// Ranks hear of each other each second, so that a shorter time would blame the living.
constexpr IntegerRange kTimeoutSeconds = {2, 1000000};
/// The default of DeepSpeed's configuration. An engine that no configuration describes has
/// aio::kDefaultQueueDepth.
constexpr int64_t kDeepSpeedQueueDepth = 8;

/// The three names that DeepSpeed's reader, documentation and tuner have for one thing.
constexpr const char* kThreadNames[] = {"thread_count", "intra_op_parallelism", "num_threads"};

int ReadThreadCount(JsonSection& aio) {
  const char* first = nullptr;
  int64_t count = 1;
  for (const char* name : kThreadNames) {
    const std::optional<int64_t> value = aio.OptionalInteger(name, {1, aio::kMaxThreadCount});
    if (!value) continue;
    if (first != nullptr && *value != count) {
      aio.Fail(name, fmt::format("{} contradicts {} {}, another name of the same; keep one", *value,
                                 first, count));
    }
    if (first == nullptr) first = name;
    count = *value;
  }
  return static_cast<int>(count);
}

int64_t ReadMultiple(JsonSection& section, const char* key, int64_t fallback, IntegerRange range,
                     int64_t unit) {
  const int64_t value = section.Integer(key, fallback, range);
  if (value % unit != 0) {
    section.Fail(key, fmt::format("{} is not a multiple of {}", value, unit));
  }
  return value;
}

Bytes ReadBlockSize(JsonSection& aio) {
  const auto number = [](Bytes size) { return static_cast<int64_t>(size.value); };
  const int64_t unit = number(aio::kMinBlockSize);
  return Bytes{static_cast<uint64_t>(ReadMultiple(aio, "block_size", number(aio::kDefaultBlockSize),
                                                  {unit, number(aio::kMaxBlockSize)}, unit))};
}

std::optional<Bytes> ReadSize(JsonSection& section, const char* key) {
  const json* value = section.Find(key);
  if (value == nullptr || value->is_null() || section.TakeAuto(key, *value)) return std::nullopt;
  std::optional<Bytes> size;
  if (value->is_string()) {
    Result<Bytes> parsed = ParseBytes(value->get<std::string>());
    if (parsed.ok()) size = *parsed;
  } else if (const std::optional<int64_t> number = AsInteger(*value); number && *number > 0) {
    size = Bytes{static_cast<uint64_t>(*number)};
  }
  if (!size || *size == 0_B) {
    section.Fail(key, fmt::format("{} is not a size above 0; write \"64MiB\", \"1.5GiB\" or plain "
                                  "bytes",
                                  Show(*value)));
    return std::nullopt;
  }
  return size;
}

void ReadSimulate(JsonSection& engine, aio::EngineOptions& options) {
  const json* value = engine.Find("simulate");
  const bool given = value != nullptr && !value->is_null();
  engine.Object("simulate", [&](JsonSection& simulate) {
    aio::SimulatedDrive drive;
    drive.read_gbps = simulate.Number("read_gbps", 0);
    drive.write_gbps = simulate.Number("write_gbps", 0);
    drive.shared = simulate.Bool("shared", false);
    drive.latency_us = simulate.Number("latency_us", 0);
    if (given) options.simulate = drive;
  });
}

/// A key that is true, false or "auto", which is also what it is if it is not there.
template <typename Value>
Value ReadSwitch(JsonSection& section, const char* key, Value off, Value on, Value automatic) {
  const json* value = section.Find(key);
  if (value == nullptr || *value == "auto") return automatic;
  if (value->is_boolean()) return value->get<bool>() ? on : off;
  section.Fail(key, fmt::format("{} is none of \"auto\", true and false", Show(*value)));
  return automatic;
}

void ReadEngine(JsonSection& engine, aio::EngineOptions& options) {
  options.kind = engine.Choice<aio::EngineKind>("engine",
                                                {{"auto", aio::EngineKind::kAuto},
                                                 {"io_uring", aio::EngineKind::kUring},
                                                 {"libaio", aio::EngineKind::kLibaio},
                                                 {"threads", aio::EngineKind::kThreads}},
                                                aio::EngineKind::kAuto);
  options.sqpoll = engine.Bool("sqpoll", false);
  options.iopoll = engine.Bool("iopoll", false);
  options.registered_buffers = ReadSwitch(engine, "registered_buffers", aio::Registration::kOff,
                                          aio::Registration::kOn, aio::Registration::kAuto);
  ReadSimulate(engine, options);
}

void ReadPlacement(JsonSection& section, Config& config) {
  config.device_memory = ReadSize(section, "device_memory");
  config.host_memory = ReadSize(section, "host_memory");
  config.tile_elements = static_cast<uint64_t>(ReadMultiple(
      section, "tile_elements", 1048576, {kTileGranularity, kMaxTileElements}, kTileGranularity));
  config.activation_home = section.Choice<Tier>(
      "activation_home", {{"device", Tier::kDevice}, {"host", Tier::kHost}}, Tier::kDevice);
  section.Off({{"schedule", kText, "[\"vertical\"]"}});
}

/// An automatic snapshot is taken of a commit that a later step has confirmed. With one slot, that
/// step has given the commit up.
void ReadSnapshots(JsonSection& section, Config& config) {
  const char* key = "snapshot_every_steps";
  config.snapshot_every_steps = section.Integer(key, 0);
  config.keep_snapshots = section.Integer("keep_snapshots", 2, {1, kMaxSnapshots});
  if (config.snapshot_every_steps > 0 && !config.durable) {
    section.Fail(key,
                 "snapshots are taken of commits that later steps leave alone, which needs "
                 "penstock.durable; set that to true, or this key to 0");
  }
}

/// What plans count with; a speed of 0 is not known.
void ReadSpeeds(JsonSection& section, Config& config) {
  const double tflops = section.OptionalNumber("device_tflops").value_or(0);
  if (tflops > 0) config.device_tflops = tflops;
  section.Object("drive", [&](JsonSection& of) {
    const DriveSpeed drive = {.read_gbps = of.Number("read_gbps", 0),
                              .write_gbps = of.Number("write_gbps", 0),
                              .shared = of.Bool("shared", false)};
    if (drive.read_gbps > 0 && drive.write_gbps > 0) config.drive = drive;
  });
}

}  // namespace

void ReadAio(JsonSection& top, ConfigDraft& draft) {
  aio::EngineOptions& options = draft.config.aio;
  top.Object("aio", [&](JsonSection& aio) {
    options.block_size = ReadBlockSize(aio);
    options.queue_depth = static_cast<int>(
        aio.Integer("queue_depth", kDeepSpeedQueueDepth, {1, aio::kMaxQueueDepth}));
    options.thread_count = ReadThreadCount(aio);
    options.single_submit = aio.Bool("single_submit", false);
    options.overlap_events = aio.Bool("overlap_events", true);
    aio.Off({{"use_gds", kBool, "[false]"}});
  });
}

void ReadPenstock(JsonSection& top, ConfigDraft& draft) {
  Config& config = draft.config;
  top.Object("penstock", [&](JsonSection& section) {
    ReadPlacement(section, config);
    config.tier_split = section.Bool("tier_split", true);
    config.overlap = section.Bool("overlap", true);
    config.optimizer_threads =
        static_cast<int>(section.Integer("optimizer_threads", 0, {0, kMaxThreads}));
    config.compute_threads =
        static_cast<int>(section.Integer("compute_threads", 0, {0, kMaxThreads}));
    config.commit_every_steps = section.Integer("commit_every_steps", 0);
    config.commit_every_seconds = section.Number("commit_every_seconds", 300);
    config.durable = section.Bool("durable", true);
    ReadSnapshots(section, config);
    config.verify_checksums = section.Bool("verify_checksums", true);
    config.verify_commits = ReadSwitch(section, "verify_commits", VerifyCommits::kOff,
                                       VerifyCommits::kOn, VerifyCommits::kAuto);
    config.gradient_order = section.Choice<GradientOrder>(
        "gradient_order", {{"global", GradientOrder::kGlobal}, {"rank", GradientOrder::kRank}},
        GradientOrder::kGlobal);
    config.attention = section.Choice<AttentionChoice>("attention",
                                                       {{"auto", AttentionChoice::kAuto},
                                                        {"own", AttentionChoice::kOwn},
                                                        {"cudnn", AttentionChoice::kCudnn}},
                                                       AttentionChoice::kAuto);
    config.rampup = ReadRampup(section);
    config.heartbeat_seconds = section.Integer("heartbeat_seconds", 30, kTimeoutSeconds);
    config.comm_timeout_seconds = section.Integer("comm_timeout_seconds", 600, kTimeoutSeconds);
    ReadSpeeds(section, config);
    section.Object("aio", [&](JsonSection& engine) { ReadEngine(engine, config.aio); });
  });
}

}  // namespace penstock::config
