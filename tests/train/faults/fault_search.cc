// Searches over single faults of drives: does one bad write, or one bad block, ever cost more than
// the newest commit?
//
//   fault_search [--seed N] [--seconds S] [--all] [--setup NAME] [--case NAME] [--jobs N]
//                [--folder DIR]
//
// A tiny model trains for 6 steps with a commit each step, while one unit of 4096 bytes of one
// write is lost, flipped, left as it was, written one block away, or cannot be read again; or one
// unit of the files is damaged after the end. It must end with an error of one line, or go on; then
// a resume must succeed from the newest commit or from the one before, with the bits of a training
// that nothing disturbed. A share is drawn with --seed until --seconds are over; --all tries
// everything, --case one alone, with what it said. Prints a table; ends with 1 for a finding.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/train/faults/bad_units.h"
#include "tests/train/faults/cases.h"
#include "tests/train/faults/training.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTrained = 6;  ///< steps before the resume
constexpr uint64_t kResumed = 8;  ///< the last step after it

struct Arguments {
  uint64_t seed = 1;
  double seconds = 40;
  bool all = false;
  uint32_t jobs = 1;  ///< processes that try cases
  std::string setup;
  std::string one;
  std::string folder;
};

/// A training that nothing disturbed.
struct Undisturbed {
  std::string saved;    ///< its folder after kTrained steps
  uint64_t states = 0;  ///< after kResumed steps
  std::vector<Case> cases;
};

/// What came of a case.
struct Outcome {
  std::string finding;                 ///< what is wrong; empty: nothing
  bool noticed = false;                ///< the training ended with an error
  std::optional<uint64_t> steps_back;  ///< from the last row to the resumed commit
  std::string log;
};

/// The table of all outcomes.
class Table {
 public:
  void Add(const Case& one, const Outcome& outcome);
  void Print() const;
  bool empty() const { return rows_.empty(); }
  bool good() const { return findings_.empty() && !rows_.empty(); }

 private:
  struct Row {
    uint64_t cases = 0, errors = 0, newest = 0, before = 0, nothing = 0, findings = 0;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Row> rows_;
  std::vector<std::pair<std::string, std::string>> findings_;
};

class Search {
 public:
  explicit Search(const Arguments& arguments) : arguments_(arguments) {}
  /// Prints, and returns the exit code.
  int Run();

 private:
  std::string FolderOf(size_t setup) const {
    return arguments_.folder + "/" + Setups()[setup].name;
  }
  TrainingOptions OptionsOf(size_t setup) const {
    return {.setup = Setups()[setup], .folder = FolderOf(setup), .steps = kTrained};
  }
  bool Learn(size_t setup);
  Outcome Try(const Case& one);
  void Damage(const Case& one);
  Outcome Resume(const Case& one, const Ended& trained);
  void Work(const std::vector<Case>& cases, uint32_t job, int report);
  bool LearnAll();

  Arguments arguments_;
  std::map<size_t, Undisturbed> undisturbed_;
};

/// Trains without a fault: what the cases are, and what they must come to.
bool Search::Learn(size_t setup) {
  MakeFolder(FolderOf(setup));
  TrainingOptions options = OptionsOf(setup);
  Ended trained = TrainOnce(options);
  Result<Regions> regions = Regions::Of(FolderOf(setup));
  if (!trained.ok || !regions.ok()) {
    std::printf("%s: a training without a fault failed: %s\n%s", options.setup.name.c_str(),
                trained.ok ? regions.error().message.c_str() : trained.error.c_str(),
                trained.log.c_str());
    return false;
  }
  Undisturbed& undisturbed = undisturbed_[setup];
  undisturbed.cases = CasesOf(setup, trained.writes, *regions);
  undisturbed.saved = FolderOf(setup) + ".saved";
  fs::remove_all(undisturbed.saved);
  fs::copy(FolderOf(setup), undisturbed.saved, fs::copy_options::recursive);
  MakeFolder(FolderOf(setup));
  options.steps = kResumed;
  const Ended whole = TrainOnce(options);
  undisturbed.states = whole.states;
  if (!whole.ok) std::printf("%s: %s\n", options.setup.name.c_str(), whole.error.c_str());
  return whole.ok;
}

/// Damages a unit of the files that the undisturbed training left.
void Search::Damage(const Case& one) {
  const Result<Regions> regions = Regions::Of(FolderOf(one.setup));
  PENSTOCK_CHECK(regions.ok());
  const std::string& path = regions->PathOf(one.site.rank, one.site.path);
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  PENSTOCK_CHECK(file.valid());
  if (one.harm == Harm::kRestBad) {
    AddBadUnit(file.get(), one.site.unit);
    return;
  }
  const auto at = static_cast<off_t>(one.site.unit.value);
  std::vector<char> unit(aio::kDamagedUnit.value);
  const ssize_t size = ::pread(file.get(), unit.data(), unit.size(), at);
  PENSTOCK_CHECK(size > 0);
  if (one.harm == Harm::kRestZero) std::ranges::fill(unit, 0);
  if (one.harm == Harm::kRestFlip) unit[static_cast<size_t>(size) / 2] ^= 4;
  PENSTOCK_CHECK(::pwrite(file.get(), unit.data(), static_cast<size_t>(size), at) == size);
}

Outcome Search::Try(const Case& one) {
  ForgetBadUnits();
  if (IsAtRest(one.harm)) {
    fs::remove_all(FolderOf(one.setup));
    fs::copy(undisturbed_.at(one.setup).saved, FolderOf(one.setup), fs::copy_options::recursive);
    Damage(one);
    return Resume(one, {.ok = true});
  }
  MakeFolder(FolderOf(one.setup));
  TrainingOptions options = OptionsOf(one.setup);
  options.site = one.site;
  options.kind = KindOf(one.harm);
  return Resume(one, TrainOnce(options));
}

/// "a crash (signal 6)" where a process ended as none should.
std::string BadEnd(const Ended& ended) {
  if (ended.hung) return "hangs";
  if (ended.signal != 0) return fmt::format("ends by signal {}", ended.signal);
  if (ended.ok) return "";
  if (ended.error.empty()) return "ends without an error";
  if (ended.error.find('\n') != std::string::npos) return "ends with several lines";
  return "";
}

Outcome Search::Resume(const Case& one, const Ended& trained) {
  Outcome outcome{.finding = BadEnd(trained), .noticed = !trained.ok};
  outcome.log = trained.log + "training: " + (trained.ok ? "ok" : trained.error) + "\n";
  if (!outcome.finding.empty()) {
    outcome.finding = "training " + outcome.finding;
    return outcome;
  }
  const std::optional<uint64_t> rows = RowsOf(FolderOf(one.setup));
  // It ended before anything was committed, and left nothing.
  if (!rows && !trained.ok) return outcome;
  TrainingOptions options = OptionsOf(one.setup);
  options.resume = true;
  options.steps = kResumed;
  const Ended resumed = TrainOnce(options);
  outcome.log += resumed.log + "resume: " + (resumed.ok ? "ok" : resumed.error) + "\n";
  std::string bad = BadEnd(resumed);
  if (bad.empty() && !resumed.ok) bad = "fails: " + resumed.error;
  if (bad.empty()) {
    outcome.steps_back = rows.value_or(0) - (kResumed - resumed.steps);
    if (resumed.states != undisturbed_.at(one.setup).states) bad = "has other bits";
    // A step is done before it is committed: of k rows the newest commit is k - 1 or k.
    if (*outcome.steps_back > 2) bad = fmt::format("went back {} steps", *outcome.steps_back);
  }
  if (!bad.empty()) outcome.finding = "resume " + bad;
  return outcome;
}

void Table::Add(const Case& one, const Outcome& outcome) {
  Row& row = rows_[{Setups()[one.setup].name, one.region, ToString(one.harm)}];
  ++row.cases;
  row.errors += outcome.noticed ? 1 : 0;
  if (outcome.steps_back) ++(*outcome.steps_back == 0 ? row.newest : row.before);
  if (!outcome.steps_back && outcome.finding.empty()) ++row.nothing;
  if (outcome.finding.empty()) return;
  ++row.findings;
  findings_.emplace_back(NameOf(one), outcome.finding);
  std::printf("FINDING %s: %s\n", findings_.back().first.c_str(), findings_.back().second.c_str());
  std::fflush(stdout);
}

void Table::Print() const {
  // "errors": trainings that ended with one. "last step", "before": where the resume began.
  // "nothing": the training ended before its first commit, and left nothing.
  std::printf("\n%-6s %-12s %-10s %6s %8s %11s %7s %8s %9s\n", "setup", "region", "fault", "cases",
              "errors", "last step", "before", "nothing", "findings");
  Row sum;
  for (const auto& [key, row] : rows_) {
    const auto& [setup, region, harm] = key;
    std::printf("%-6s %-12s %-10s %6lu %8lu %11lu %7lu %8lu %9lu\n", setup.c_str(), region.c_str(),
                harm.c_str(), row.cases, row.errors, row.newest, row.before, row.nothing,
                row.findings);
    sum.cases += row.cases;
    sum.findings += row.findings;
  }
  std::printf("%lu cases, %lu findings\n", sum.cases, sum.findings);
  if (!findings_.empty()) {
    std::printf("repeat one: scripts/faults --case '%s'\n", findings_.front().first.c_str());
  }
}

/// Tries the cases of one job, and reports each as a line: its number, and what came of it.
void Search::Work(const std::vector<Case>& cases, uint32_t job, int report) {
  ShareBadUnits();
  arguments_.folder += fmt::format("/job{}", job);
  PENSTOCK_CHECK(LearnAll());
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = job; i < cases.size(); i += arguments_.jobs) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const bool share = !arguments_.all && arguments_.one.empty();
    if (share && passed.count() > arguments_.seconds) break;
    Outcome outcome = Try(cases[i]);
    if (!arguments_.one.empty()) std::fputs(outcome.log.c_str(), stdout);
    outcome.finding.resize(std::min<size_t>(outcome.finding.size(), 600));
    const std::string line = fmt::format(
        "{} {} {} {}\n", i, outcome.noticed ? 1 : 0,
        outcome.steps_back ? static_cast<int64_t>(*outcome.steps_back) : -1, outcome.finding);
    // Short enough not to be mixed with those of other jobs.
    PENSTOCK_CHECK(::write(report, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  }
}

bool Search::LearnAll() {
  const std::optional<Case> named = CaseNamed(arguments_.one);
  for (size_t setup = 0; setup < Setups().size(); ++setup) {
    if (named && named->setup != setup) continue;
    if (!arguments_.setup.empty() && arguments_.setup != Setups()[setup].name) continue;
    if (!Learn(setup)) return false;
  }
  return true;
}

/// Reads the lines of all jobs until they have ended.
bool ReadReports(FILE* reports, const std::vector<Case>& cases, Table& table) {
  char line[1024];
  while (std::fgets(line, sizeof line, reports) != nullptr) {
    size_t number = 0;
    int noticed = 0;
    int64_t steps_back = 0;
    int used = 0;
    if (std::sscanf(line, "%zu %d %ld %n", &number, &noticed, &steps_back, &used) != 3 ||
        number >= cases.size()) {
      return false;
    }
    Outcome outcome{.finding = line + used, .noticed = noticed != 0};
    if (outcome.finding.ends_with('\n')) outcome.finding.pop_back();
    if (steps_back >= 0) outcome.steps_back = static_cast<uint64_t>(steps_back);
    table.Add(cases[number], outcome);
  }
  return true;
}

int Search::Run() {
  if (!arguments_.one.empty() && !CaseNamed(arguments_.one)) {
    std::fprintf(stderr, "%s is no case; one is nvme/r0.p0/36864#3/flip\n", arguments_.one.c_str());
    return 2;
  }
  ShareBadUnits();
  if (!LearnAll()) return 1;
  std::vector<Case> cases;
  for (const auto& [setup, undisturbed] : undisturbed_) {
    cases.insert(cases.end(), undisturbed.cases.begin(), undisturbed.cases.end());
  }
  std::printf("%zu cases, seed %lu\n", cases.size(), arguments_.seed);
  std::fflush(stdout);
  if (!arguments_.one.empty()) {
    std::erase_if(cases, [&](const Case& one) { return NameOf(one) != arguments_.one; });
  }
  std::mt19937_64 random(arguments_.seed);
  std::ranges::shuffle(cases, random);
  int ends[2];
  PENSTOCK_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  std::vector<pid_t> jobs;
  for (uint32_t job = 0; job < arguments_.jobs; ++job) {
    jobs.push_back(::fork());
    PENSTOCK_CHECK(jobs.back() >= 0);
    if (jobs.back() != 0) continue;
    Work(cases, job, ends[1]);
    std::fflush(stdout);
    ::_exit(0);
  }
  ::close(ends[1]);
  Table table;
  FILE* const reports = ::fdopen(ends[0], "r");
  bool whole = ReadReports(reports, cases, table);
  std::fclose(reports);
  for (const pid_t job : jobs) {
    int status = 0;
    ::waitpid(job, &status, 0);
    whole = whole && status == 0;
  }
  table.Print();
  if (!whole) std::printf("a job of the search failed\n");
  return whole && table.good() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--all") {
      arguments.all = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (name == "--seed") arguments.seed = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--seconds") arguments.seconds = std::strtod(value.c_str(), nullptr);
    if (name == "--jobs") {
      arguments.jobs =
          std::max(1U, static_cast<uint32_t>(std::strtoul(value.c_str(), nullptr, 10)));
    }
    if (name == "--setup") arguments.setup = value;
    if (name == "--case") arguments.one = value;
    if (name == "--folder") arguments.folder = value;
  }
  if (!arguments.folder.empty()) fs::create_directories(arguments.folder);
  std::string pattern =
      (arguments.folder.empty() ? fs::temp_directory_path().string() : arguments.folder) +
      "/fault_search_XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    std::perror(pattern.c_str());
    return 2;
  }
  arguments.folder = pattern;
  const int code = Search(arguments).Run();
  fs::remove_all(arguments.folder);
  return code;
}

}  // namespace
}  // namespace penstock::train

int main(int argc, char** argv) { return penstock::train::Main(argc, argv); }
