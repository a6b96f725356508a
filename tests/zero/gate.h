// Holds a drive back, for tests of concurrent work.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/aio/wrapped_engine.h"

namespace penstock::zero {

/// Holds back threads that pass while it is closed.
class Gate {
 public:
  void Close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  void AwaitWaiting() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(1), [this] { return waiting_ > 0; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

/// An engine whose drive synchronises only when the gate is open.
class GatedEngine final : public aio::WrappedEngine {
 public:
  GatedEngine(std::unique_ptr<aio::Engine> base, Gate& gate)
      : WrappedEngine(std::move(base)), gate_(gate) {}

  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kSync) gate_.Pass();
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  Gate& gate_;
};

/// An engine whose drive completes writes only when the gate is open; counts those that it is
/// given.
class GatedWrites final : public aio::WrappedEngine {
 public:
  GatedWrites(std::unique_ptr<aio::Engine> base, Gate& gate, std::atomic<size_t>& submitted)
      : WrappedEngine(std::move(base)), gate_(gate), submitted_(submitted) {}

  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kWrite) {
      request.on_complete = [this, then = std::move(request.on_complete)](const Status& status) {
        gate_.Pass();
        if (then) then(status);
      };
      ++submitted_;
    }
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  Gate& gate_;
  std::atomic<size_t>& submitted_;
};

/// An engine whose drive completes reads only when the gate is open.
class GatedReads final : public aio::WrappedEngine {
 public:
  GatedReads(std::unique_ptr<aio::Engine> base, Gate& gate)
      : WrappedEngine(std::move(base)), gate_(gate) {}

  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kRead && request.on_complete) {
      request.on_complete = [this, then = std::move(request.on_complete)](const Status& status) {
        gate_.Pass();
        then(status);
      };
    }
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  Gate& gate_;
};

/// Reads that a drive gets only when they are let go, so that others pass them.
class Hold {
 public:
  using Which = std::function<bool(const aio::Request& request)>;

  /// From here on reads are held for which `which` is true.
  void Begin(Which which) {
    const std::lock_guard lock(mutex_);
    which_ = std::move(which);
  }
  /// Lets all go, and holds no more.
  void End() {
    std::vector<std::function<void()>> let_go;
    {
      const std::lock_guard lock(mutex_);
      which_ = nullptr;
      let_go.swap(held_);
    }
    for (const auto& submit : let_go) submit();
  }
  /// Whether it holds the request, which `submit` passes on.
  bool Holds(const aio::Request& request, const std::function<void()>& submit) {
    const std::lock_guard lock(mutex_);
    const bool holds = which_ && request.operation == aio::Operation::kRead && which_(request);
    if (holds) held_.push_back(submit);
    return holds;
  }
  size_t held() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

 private:
  mutable std::mutex mutex_;
  Which which_;
  std::vector<std::function<void()>> held_;
};

/// An engine whose drive does not get what is held. The submitter must not use the ticket.
class HeldReads final : public aio::WrappedEngine {
 public:
  HeldReads(std::unique_ptr<aio::Engine> base, Hold& hold)
      : WrappedEngine(std::move(base)), hold_(hold) {}

  aio::Ticket Submit(aio::Request request) override {
    if (hold_.Holds(request, [this, request] { WrappedEngine::Submit(request); })) return {};
    return WrappedEngine::Submit(std::move(request));
  }
  void Cancel() override {
    hold_.End();
    WrappedEngine::Cancel();
  }

 private:
  Hold& hold_;
};

/// For EngineOptions::create_io.
template <typename Engine, typename By>
auto GatedBy(By& gate) {
  return [&gate](size_t, const aio::EngineOptions& options,
                 std::string* notice) -> Result<std::unique_ptr<aio::Engine>> {
    PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> base, aio::CreateEngine(options, notice));
    return std::unique_ptr<aio::Engine>(std::make_unique<Engine>(std::move(base), gate));
  };
}

}  // namespace penstock::zero
