#include "tests/emulated_cuda/block.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <csetjmp>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/mapping.h"
#include "tests/emulated_cuda/cudart.h"

namespace penstock::emulated_cuda {
namespace {

constexpr Bytes kStack = 128_KiB;
constexpr Bytes kGuard = 4_KiB;  ///< below the stack, so that one that does not suffice is noticed

/// A stack that runs one thread of the block after the other; a thread that waits keeps it.
struct Fiber {
  ucontext_t start;
  bool started = false;
  jmp_buf place;  ///< where it left off
  uint3 thread{};
};

/// Threads that meet: of a warp, or of the block.
struct Group {
  unsigned members = 0;         ///< that have not ended
  std::vector<Fiber*> waiting;  ///< of those, who are there already
  const char* operation = nullptr;
  bool all = true;   ///< of what they say
  bool said = true;  ///< of the last meeting
};

struct Warp {
  Group group;
  alignas(16) std::byte in[kLanes * kLaneBytes];
  alignas(16) std::byte out[kLanes * kLaneBytes];
};

class Block {
 public:
  Block();
  void Run(const char* what, dim3 threads, size_t shared, const std::function<void()>& body);
  const char* what() const { return what_; }

  void Meet(Group& group, const char* operation, bool value,
            void (*combine)(const std::byte*, std::byte*));
  Group& all() { return all_; }
  Warp& warp() { return warps_[Linear(threadIdx) / kLanes]; }
  unsigned Linear(const uint3& thread) const {
    return (thread.z * blockDim.y + thread.y) * blockDim.x + thread.x;
  }
  unsigned char* shared() { return reinterpret_cast<unsigned char*>(shared_.data()); }

 private:
  static void Enter();
  void RunThreads();
  void End();
  void Release(Group& group);
  Fiber& TakeFiber();
  Fiber& TakeReady();
  // Not inlined, as compilers fear for what a caller has in registers.
  [[gnu::noinline]] static void PutOnStack(ucontext_t& context, const Mapping& stack);
  [[gnu::noinline]] void Resume(Fiber& fiber);
  [[gnu::noinline]] void Suspend();

  const char* what_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::vector<unsigned> order_;  ///< in which the block's threads begin
  size_t begun_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Mapping> stacks_;
  std::vector<Fiber*> idle_, ready_;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
  Group all_;
  std::vector<Warp> warps_;
  std::vector<uint16_t> shared_;
  std::mt19937 random_;
  bool runs_ahead_ = false;
};

/// The one that this thread runs.
constinit thread_local Block* block = nullptr;

/// The orders of no two streams are the same.
Block::Block() {
  static std::atomic<unsigned> made = 0;
  random_.seed(++made);
}

void Block::PutOnStack(ucontext_t& context, const Mapping& stack) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack.data() + kGuard.value;
  context.uc_stack.ss_size = kStack.value;
  makecontext(&context, &Block::Enter, 0);
}

Fiber& Block::TakeFiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    stacks_.push_back(Mapping::Create(kGuard + kStack).value());
    PENSTOCK_CHECK(::mprotect(stacks_.back().data(), kGuard.value, PROT_NONE) == 0);
    PutOnStack(fibers_.back()->start, stacks_.back());
    return *fibers_.back();
  }
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

/// Any of those that can go on; or always one that could not until now, so that a warp goes far
/// ahead of the others.
Fiber& Block::TakeReady() {
  if (!runs_ahead_) std::swap(ready_[random_() % ready_.size()], ready_.back());
  Fiber& fiber = *ready_.back();
  ready_.pop_back();
  threadIdx = fiber.thread;
  return fiber;
}

/// The life of a fiber: whenever it is taken, it runs threads until all have begun.
void Block::Enter() {
  for (;;) {
    block->RunThreads();
    block->idle_.push_back(block->current_);
    block->Suspend();
  }
}

/// Goes on with the scheduler, until that resumes the fiber. By setjmp, as contexts ask the kernel
/// for the signal mask each time.
void Block::Suspend() {
  if (_setjmp(current_->place) == 0) _longjmp(scheduler_, 1);
}

void Block::Resume(Fiber& fiber) {
  current_ = &fiber;
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

void Block::RunThreads() {
  while (begun_ < order_.size()) {
    const unsigned thread = order_[begun_++];
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
                 thread / blockDim.x / blockDim.y};
    (*body_)();
    End();
  }
}

/// A barrier does not wait for a thread that has ended; the operations of its warp do.
void Block::End() {
  Group& lanes = warp().group;
  PENSTOCK_CHECK(lanes.waiting.empty(), "{}: a lane has ended while others of its warp are in {}",
                 what_, lanes.operation);
  --lanes.members;
  --all_.members;
  if (!all_.waiting.empty() && all_.waiting.size() == all_.members) Release(all_);
}

void Block::Release(Group& group) {
  group.said = group.all;
  group.all = true;
  ready_.insert(ready_.end(), group.waiting.begin(), group.waiting.end());
  group.waiting.clear();
}

void Block::Meet(Group& group, const char* operation, bool value,
                 void (*combine)(const std::byte*, std::byte*)) {
  if (group.waiting.empty()) group.operation = operation;
  PENSTOCK_CHECK(group.operation == operation || std::string_view(group.operation) == operation,
                 "{}: threads that should be together are in {} and in {}", what_, group.operation,
                 operation);
  group.all = group.all && value;
  if (group.waiting.size() + 1 == group.members) {
    if (combine != nullptr) combine(warp().in, warp().out);
    Release(group);
    return;
  }
  current_->thread = threadIdx;
  group.waiting.push_back(current_);
  Suspend();
}

void Block::Run(const char* what, dim3 threads, size_t shared, const std::function<void()>& body) {
  what_ = what;
  body_ = &body;
  const unsigned count = threads.x * threads.y * threads.z;
  PENSTOCK_CHECK(count % kLanes == 0 && count <= 1024, "a block of {} threads", count);
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0);
  runs_ahead_ = random_() % 2 == 0;
  if (!runs_ahead_) {
    std::ranges::shuffle(order_, random_);
  } else {  // any warp first, and each whole
    const size_t first = random_() % (count / kLanes) * kLanes;
    std::ranges::rotate(order_, order_.begin() + static_cast<std::ptrdiff_t>(first));
  }
  begun_ = 0;
  all_.members = count;
  warps_.resize(count / kLanes);
  for (Warp& warp : warps_) warp.group.members = kLanes;
  shared_.assign((shared + 1) / 2, kNeverWritten);
  while (begun_ < order_.size() || !ready_.empty()) {
    const bool begins = begun_ < order_.size() && (ready_.empty() || !runs_ahead_);
    Resume(begins ? TakeFiber() : TakeReady());
  }
  PENSTOCK_CHECK(all_.members == 0, "{}: {} threads of a block wait for others that never come",
                 what, all_.members);
}

}  // namespace

void RunGrid(const char* what, uint64_t blocks, dim3 threads, size_t shared,
             const std::function<void()>& body) {
  PENSTOCK_CHECK(blocks < uint64_t{1} << 31, "{} blocks for {}", blocks, what);
  static thread_local Block runner;
  block = &runner;
  gridDim = dim3(static_cast<unsigned>(blocks));
  blockDim = threads;
  for (uint64_t i = 0; i < blocks; ++i) {
    blockIdx = {static_cast<unsigned>(i), 0, 0};
    runner.Run(what, threads, shared, body);
  }
}

unsigned char* DynamicShared() { return block->shared(); }

bool MeetBlock(const char* operation, bool value) {
  block->Meet(block->all(), operation, value, nullptr);
  return block->all().said;
}

unsigned LaneOfThread() { return block->Linear(threadIdx) % kLanes; }
std::byte* WarpInputs() { return block->warp().in; }
std::byte* WarpOutputs() { return block->warp().out; }

void MeetWarp(const char* operation, void (*combine)(const std::byte* in, std::byte* out)) {
  Group& group = block->warp().group;
  PENSTOCK_CHECK(group.members == kLanes, "{}: {} lanes of a warp have ended before its {}",
                 block->what(), kLanes - group.members, operation);
  block->Meet(group, operation, true, combine);
}

}  // namespace penstock::emulated_cuda
