// A folder of a test's own that goes when the test ends, files in it, and what errors must say.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/folder.h"
#include "base/result.h"

namespace penstock {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = testing::TempDir() + "penstock_XXXXXX";
    PENSTOCK_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string Path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  /// As the code under test holds it.
  Folder Open(const std::string& name = "") const { return Folder::Open(Path(name)).value(); }
  /// Writes a file, with the folders above it; returns its path.
  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    PENSTOCK_CHECK(out.good());
    return path.string();
  }
  std::string Read(const std::string& name) const {
    std::ifstream in(path_ / name, std::ios::binary);
    PENSTOCK_CHECK(in.good(), "{}", name);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  bool Has(const std::string& name) const { return std::filesystem::exists(path_ / name); }
  /// Names of everything in it, or in a folder in it, sorted.
  std::vector<std::string> List(const std::string& folder = "") const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_ / folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

/// Passes where `result` (a Status or a Result) failed with `code` and a one-line message that
/// holds every one of `parts`.
template <typename T>
testing::AssertionResult FailsWith(const T& result, ErrorCode code,
                                   const std::vector<std::string>& parts) {
  if (result.ok()) return testing::AssertionFailure() << "it succeeded";
  const Error& error = result.error();
  if (error.code != code) {
    return testing::AssertionFailure()
           << "code " << static_cast<int>(error.code) << ", message " << error.message;
  }
  if (error.message.find('\n') != std::string::npos) {
    return testing::AssertionFailure() << "more than a line: " << error.message;
  }
  for (const std::string& part : parts) {
    if (error.message.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "no \"" << part << "\" in: " << error.message;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace penstock
