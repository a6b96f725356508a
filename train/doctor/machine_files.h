// The files of /proc and /sys that describe a machine. A test describes another one in a folder.
//
// A file that is missing or cannot be read is no error: containers hide many.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::train {

class MachineFiles {
 public:
  /// `root`: the folder of /proc, /sys and the rest.
  explicit MachineFiles(std::string root = "/") : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  bool Exists(const std::string& path) const;
  /// Returns the whole file, of which a megabyte at most is read. `path` begins without a slash.
  std::optional<std::string> Text(const std::string& path) const;
  /// Returns the first line; nothing if it is empty.
  std::optional<std::string> Line(const std::string& path) const;
  /// Returns the first line if it is a whole number.
  std::optional<uint64_t> Number(const std::string& path) const;
  /// Returns the names in a folder, sorted; none if it cannot be read.
  std::vector<std::string> Names(const std::string& folder) const;
  /// Returns what stands behind "key:" or "key" and blanks in a file of such lines.
  std::optional<std::string> Field(const std::string& path, const std::string& key) const;

 private:
  std::string root_;
};

/// Returns how many numbers a list such as "0-3,8" names; nothing if it is none.
std::optional<uint64_t> CountOfList(const std::string& list);

}  // namespace penstock::train
