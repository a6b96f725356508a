// A drive over another one: forwards every call that a subclass does not override.
//
// Owns the base drive, which outlives the members of the subclass. Threads: see aio/drive.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "aio/drive.h"

namespace penstock::aio {

class LayeredDrive : public Drive {
 public:
  void Wake() override { base_->Wake(); }
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) override {
    return base_->RegisterBuffers(memory);
  }
  Status RegisterFile(const File& file) override { return base_->RegisterFile(file); }
  void UnregisterFile(int fd) override { base_->UnregisterFile(fd); }
  int thread_count() const override { return base_->thread_count(); }
  const std::string& name() const override { return base_->name(); }

 protected:
  explicit LayeredDrive(std::unique_ptr<Drive> base) : base_(std::move(base)) {}
  Drive& base() { return *base_; }

 private:
  const std::unique_ptr<Drive> base_;
};

}  // namespace penstock::aio
