// An I/O engine that passes everything on to another one, for tests that watch or hold requests.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "aio/aio.h"

namespace penstock::aio {

class WrappedEngine : public Engine {
 public:
  explicit WrappedEngine(std::unique_ptr<Engine> base) : base_(std::move(base)) {}

  Ticket Submit(Request request) override { return base_->Submit(std::move(request)); }
  void Drain() override { base_->Drain(); }
  void Cancel() override { base_->Cancel(); }
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) override {
    return base_->RegisterBuffers(memory);
  }
  Result<FileRegistration> RegisterFile(const File& file) override {
    return base_->RegisterFile(file);
  }
  EngineStats stats() const override { return base_->stats(); }
  const std::string& name() const override { return base_->name(); }

 private:
  std::unique_ptr<Engine> base_;
};

}  // namespace penstock::aio
