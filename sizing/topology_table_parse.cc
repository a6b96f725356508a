// Reads a table of topologies.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "sizing/topology_table.h"

namespace penstock::train {
namespace {

constexpr std::array<std::string_view, 5> kNeededColumns = {"dp", "tp", "pp", "mbs", "gbs"};
constexpr std::array<std::string_view, 9> kOtherColumns = {
    "nodes", "gpus", "hidden", "layers", "heads", "mem", "sec_it", "tflops", "line"};
/// Numbers of a cell: beyond these no product of them is of use.
constexpr uint64_t kMaxInCell = uint64_t{1} << 32;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) {
    text.remove_prefix(1);
  }
  return text;
}

std::vector<std::string_view> Parts(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(Trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

bool IsNothing(std::string_view cell) {
  const std::string lower = Lower(cell);
  return lower.empty() || lower == "x" || lower == "gb" || lower == "none";
}

/// A line of the table: cells by the name of their column.
class CellReader {
 public:
  CellReader(std::string where, std::map<std::string, std::string_view> cells)
      : where_(std::move(where)), cells_(std::move(cells)) {}

  std::string_view Cell(const std::string& column) const {
    const auto found = cells_.find(column);
    return found == cells_.end() ? std::string_view() : found->second;
  }

  template <typename... Args>
  Error Wrong(const std::string& column, fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kInvalidArgument, "{}: {}: {}", where_, column,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  /// Returns a whole number of at least 1; none where the cell is empty.
  Result<std::optional<uint64_t>> Whole(const std::string& column) const {
    if (IsNothing(Cell(column))) return std::optional<uint64_t>();
    const Result<uint64_t> number =
        ParseWhole(std::string(Cell(column)), {.low = 1, .high = kMaxInCell});
    if (!number.ok()) return Wrong(column, "{}", number.error().message);
    return std::optional<uint64_t>(*number);
  }

  /// Returns a number above 0, which `unit` may follow; none where the cell is empty.
  Result<std::optional<double>> Real(const std::string& column, std::string_view unit = "") const {
    if (IsNothing(Cell(column))) return std::optional<double>();
    std::string_view cell = Cell(column);
    if (cell.ends_with(unit)) cell.remove_suffix(unit.size());
    cell = Trimmed(cell);
    double number = 0;
    const auto parsed = std::from_chars(cell.data(), cell.data() + cell.size(), number);
    if (parsed.ec != std::errc() || parsed.ptr != cell.data() + cell.size() || !(number > 0) ||
        std::isinf(number)) {
      return Wrong(column, "\"{}\" is not a number above 0; leave it empty where there is none",
                   Cell(column));
    }
    return std::optional<double>(number);
  }

  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::map<std::string, std::string_view> cells_;
};

/// The columns of a header; empty for one without effect.
struct Header {
  std::vector<std::string> columns;
  std::vector<std::string> without_effect;
};

Result<Header> ReadHeader(std::string_view line, const std::string& name) {
  Header header;
  for (const std::string_view cell : Parts(line, ',')) {
    std::string column = Lower(cell);
    if (column == "tflops_seed") column = "tflops";
    const bool known = std::ranges::find(kNeededColumns, column) != kNeededColumns.end() ||
                       std::ranges::find(kOtherColumns, column) != kOtherColumns.end();
    if (!known) {
      header.without_effect.emplace_back(cell);
      column.clear();
    } else if (std::ranges::find(header.columns, column) != header.columns.end()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "topologies {}: column \"{}\" is there twice; leave one out", name, cell);
    }
    header.columns.push_back(std::move(column));
  }
  for (const std::string_view needed : kNeededColumns) {
    if (std::ranges::find(header.columns, needed) != header.columns.end()) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "topologies {}: the first line has no column \"{}\"; it needs DP, TP, PP, MBS "
                     "and GBS, separated by commas",
                     name, needed);
  }
  return header;
}

Result<CellReader> ReadCells(const Header& header, std::string_view line, std::string where) {
  const std::vector<std::string_view> parts = Parts(line, ',');
  if (parts.size() != header.columns.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}: {} cells, but the header has {}", where,
                     parts.size(), header.columns.size());
  }
  std::map<std::string, std::string_view> cells;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!header.columns[i].empty()) cells[header.columns[i]] = parts[i];
  }
  return CellReader(std::move(where), std::move(cells));
}

Result<Topology> ReadTopology(const CellReader& cells, const Cluster& cluster) {
  Topology topology;
  const std::array<std::pair<const char*, uint64_t*>, 5> fields = {
      {{"dp", &topology.data},
       {"tp", &topology.tensor},
       {"pp", &topology.pipeline},
       {"mbs", &topology.micro_batch},
       {"gbs", &topology.global_batch}}};
  for (const auto& [column, field] : fields) {
    PENSTOCK_ASSIGN(const std::optional<uint64_t> number, cells.Whole(column));
    *field = number.value_or(1);
    if (!number && column == std::string_view("gbs")) return cells.Wrong(column, "is empty");
  }
  PENSTOCK_ASSIGN(const std::optional<uint64_t> nodes, cells.Whole("nodes"));
  PENSTOCK_ASSIGN(const std::optional<uint64_t> gpus, cells.Whole("gpus"));
  topology.gpus = topology.product();
  if (nodes) topology.gpus = SaturatingMultiply(*nodes, cluster.gpus_per_node);
  if (gpus) topology.gpus = *gpus;
  return topology;
}

/// The model's shape with a row's own width, layers and heads.
Result<std::optional<ModelShape>> ReadShape(const CellReader& cells, const ModelShape& model) {
  PENSTOCK_ASSIGN(const std::optional<uint64_t> hidden, cells.Whole("hidden"));
  PENSTOCK_ASSIGN(const std::optional<uint64_t> layers, cells.Whole("layers"));
  PENSTOCK_ASSIGN(const std::optional<uint64_t> heads, cells.Whole("heads"));
  ModelShape shape = model;
  const bool other_width = hidden && *hidden != model.width;
  if (other_width && !layers) return std::optional<ModelShape>();
  const bool simple = model.family == ShapeFamily::kGpt2 || model.family == ShapeFamily::kBloom;
  if (!simple && (other_width || heads)) {
    return cells.Wrong(other_width ? "hidden" : "heads",
                       "a {} has more sizes than these; leave the column out, and name the shape "
                       "with --model",
                       ToString(model.family));
  }
  if (other_width) {
    shape.width = *hidden;
    shape.inner = SaturatingMultiply(4, *hidden);
    shape.heads = 0;
  }
  if (layers) shape.layers = *layers;
  if (heads) shape.heads = *heads;
  if (heads && shape.width % *heads != 0) {
    return cells.Wrong("heads", "{} does not divide h = {}", *heads, shape.width);
  }
  if (simple) {
    shape.kv_heads = shape.heads;
    shape.head_width = shape.heads == 0 ? 0 : shape.width / shape.heads;
  }
  return std::optional<ModelShape>(shape);
}

Result<TopologyRow> ReadRow(const CellReader& cells, std::string label, const ModelShape& model,
                            const Cluster& cluster) {
  TopologyRow row;
  row.label = cells.Cell("line").empty() ? std::move(label) : std::string(cells.Cell("line"));
  PENSTOCK_ASSIGN(row.topology, ReadTopology(cells, cluster));
  PENSTOCK_ASSIGN(row.shape, ReadShape(cells, model));
  row.ran_out_of_memory = Lower(cells.Cell("mem")) == "oom";
  if (!row.ran_out_of_memory) {
    PENSTOCK_ASSIGN(const std::optional<double> gib, cells.Real("mem", "GB"));
    if (gib) row.memory = Bytes{static_cast<uint64_t>(std::min(*gib, 0x1p30) * 0x1p30)};
  }
  PENSTOCK_ASSIGN(row.seconds, cells.Real("sec_it"));
  PENSTOCK_ASSIGN(row.stated_tflops, cells.Real("tflops"));
  return row;
}

}  // namespace

Result<TopologyTable> ParseTopologyTable(const std::string& text, const std::string& name,
                                         const ModelShape& shape, const Cluster& cluster) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // spreadsheets begin a file with it
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  TopologyTable table;
  std::optional<Header> header;
  size_t number = 0;
  for (const std::string_view line : Parts(rest, '\n')) {
    ++number;
    if (line.empty()) continue;
    if (!header) {
      PENSTOCK_ASSIGN(header, ReadHeader(line, name));
      continue;
    }
    PENSTOCK_ASSIGN(const CellReader cells,
                    ReadCells(*header, line, fmt::format("topologies {}:{}", name, number)));
    PENSTOCK_ASSIGN(TopologyRow row, ReadRow(cells, std::to_string(number), shape, cluster));
    table.rows.push_back(std::move(row));
  }
  if (table.rows.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "topologies {}: there are no rows; write a header with DP, TP, PP, MBS and GBS, "
        "and a row for each topology",
        name);
  }
  if (!header->without_effect.empty()) {
    table.notices.push_back(fmt::format("topologies {}: columns without effect: {}", name,
                                        fmt::join(header->without_effect, ", ")));
  }
  return table;
}

}  // namespace penstock::train
