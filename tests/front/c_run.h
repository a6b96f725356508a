// A run of the C interface as tests use it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "tests/front/c_engine.h"

namespace penstock::front {

inline const json kIdentity{{"kind", "optimizer"}, {"rule", "AdamW"}, {"names", "1234"}};

class CRun {
 public:
  explicit CRun(const json& options) {
    json all{{"kind", "optimizer"}};
    all.update(options);
    code = penstock_open_run(all.dump().c_str(), &handle);
    if (code != PENSTOCK_OK) error = penstock_error();
  }
  CRun(const CRun&) = delete;
  CRun& operator=(const CRun&) = delete;
  ~CRun() { Close(); }

  int Close() { return penstock_close_run(std::exchange(handle, nullptr)); }
  json Describe() const {
    char* text = nullptr;
    EXPECT_EQ(penstock_describe_run(handle, &text), PENSTOCK_OK) << penstock_error();
    json value = json::parse(text == nullptr ? "null" : text);
    penstock_free(text);
    return value;
  }
  std::string folder() const { return Describe()["folder"]; }

  CEngine Create(const Home& home, const std::string& drive, const json& more = json::object(),
                 const json& changes = json::object()) const {
    json options{{"identity", kIdentity}};
    options.update(more);
    json config = ConfigOf(home, drive);
    config.merge_patch(changes);
    return {handle, config, ModelOf("bf16"), options};
  }

  penstock_run* handle = nullptr;
  int code = PENSTOCK_OK;
  std::string error;
};

inline int CommitWith(penstock_engine* engine, const json& caller) {
  const int begun = penstock_begin_commit(engine, caller.dump().c_str());
  return begun == PENSTOCK_OK ? penstock_finish_commit(engine) : begun;
}

inline json RunJson(const std::string& folder) {
  std::ifstream file(folder + "/run.json");
  return json::parse(file);
}

inline std::set<std::string> FilesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename());
  return names;
}

/// Has a child of a fork do something and end without closing anything.
template <typename Function>
void InKilledProcess(Function function) {
  const pid_t child = ::fork();
  if (child == 0) {
    function();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace penstock::front
