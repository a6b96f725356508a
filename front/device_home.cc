#include "front/device_home.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "front/parallel_copy.h"
#include "kernels/state/state_operator_factories.h"

namespace penstock::front {
namespace {

using offload::ModuleId;
using offload::TileId;

constexpr const char* kElsewhere = "have them in host memory or on nvme (offload_optimizer)";

Error NotHere(const std::string& why) {
  return MakeError(ErrorCode::kUnavailable,
                   "optimizer states cannot be at home on the device: {}; {}", why, kElsewhere);
}

}  // namespace

std::optional<ContextScope> DeviceHome::Enter() {
  callers_ = context_;
  CuContext current = nullptr;
  if (driver_.ctx_get_current(&current) == kCuSuccess) callers_ = current;
  Result<ContextScope> scope = ContextScope::Enter(driver_, context_);
  if (!scope.ok()) return std::nullopt;
  return *std::move(scope);
}

Result<ContextScope> DeviceHome::EnterWith(CuStream stream) const {
  PENSTOCK_ASSIGN(CuContext of, ContextOf(driver_, stream));
  // A default stream means the context that was current at the call, which Enter has replaced.
  if (IsDefaultStream(stream) && callers_ != nullptr) of = callers_;
  if (of == context_) return ContextScope::Enter(driver_, context_);
  return MakeError(ErrorCode::kInvalidArgument,
                   "cuda: the stream is of another context than that in which the engine was made; "
                   "an engine works on one device, so give streams of that one");
}

Result<std::unique_ptr<DeviceHome>> DeviceHome::Create(const Plan& plan) {
  if (device::BuiltCudaVersion() == 0) return NotHere("this library was built without CUDA");
  PENSTOCK_ASSIGN(const CudaDriver driver, LoadCudaDriver());
  CuContext context = nullptr;
  PENSTOCK_TRY(driver.Check(driver.ctx_get_current(&context), "looking for the current context"));
  if (context == nullptr) {
    return NotHere("the thread that makes the engine has no current context of CUDA");
  }
  std::unique_ptr<DeviceHome> home(new DeviceHome(driver, context));
  PENSTOCK_TRY(home->Build(plan));
  return home;
}

Status DeviceHome::Build(const Plan& plan) {
  const Result<Bytes> free = device::FreeCudaMemory();
  if (!free.ok()) {  // without the advice for the command line
    const std::string& message = free.error().message;
    return NotHere(message.substr(0, message.rfind("; ")));
  }
  const Bytes need = plan.device.total();
  if (need > *free) {
    return MakeError(ErrorCode::kBudget,
                     "device memory: optimizer states at home there need {} bytes ({}), and {} are "
                     "free; free {} bytes more, or {}",
                     need.value, plan.device.Sum(), free->value, (need - *free).value, kElsewhere);
  }
  PENSTOCK_ASSIGN(device_, device::CreateCudaDevice({.memory = need}));
  PENSTOCK_ASSIGN(operators_, kernels::CreateCudaStateOperators());
  PENSTOCK_ASSIGN(sums_, device_->Allocate(plan.device.sums, "sums of gradients"));
  zero::EngineOptions options = plan.engine;
  options.device_reserved = plan.device.sums;
  PENSTOCK_ASSIGN(states_,
                  zero::ResidentEngine::CreateForCaller(std::move(options), *device_, *operators_));
  stream_ = dynamic_cast<device::CudaStream*>(&states_->compute_stream());
  PENSTOCK_CHECK(stream_ != nullptr);
  return TryKernels();
}

/// Runs a kernel that changes nothing, so that a GPU without machine code in this build is refused
/// before a training begins.
Status DeviceHome::TryKernels() {
  std::optional<TileId> trained;
  for (const TileId tile : states_->layout().Tiles()) {
    if (!trained && !states_->layout().frozen(tile)) trained = tile;
  }
  if (!trained) return {};
  std::byte* const zero = states_->GradientOf(*trained);
  operators_->RoundGradients(stream(), reinterpret_cast<const float*>(zero), DType::kFloat32, 1,
                             zero);
  const Status ran = stream().Synchronize();
  return ran.ok() ? Status() : NotHere(ran.error().message);
}

DeviceHome::~DeviceHome() {
  const std::optional<ContextScope> scope = Enter();
  states_.reset();
  operators_.reset();
  sums_ = {};
  device_.reset();
}

DType DeviceHome::WeightOf(ModuleId module, uint32_t tensor) const {
  const offload::ModelLayout& model = states_->layout().model;
  const offload::TensorLayout& of = states_->layout().module(module).tensors[tensor];
  return static_cast<DType>(model.group(of.group).planes.weight().encoding);
}

Status DeviceHome::CopyWeights(ModuleId module, const UnitMemory& to, CuStream callers) {
  const offload::ShardLayout& layout = states_->layout();
  std::vector<Copy> copies;
  for (const TileId tile : layout.TilesOf(module)) {
    to.AddCopies(layout, tile, {states_->WeightOf(tile), layout.WeightBytes(tile).value}, copies);
  }
  stream().Follow(callers);
  for (const Copy& copy : copies) {
    stream().CopyOnDevice(static_cast<std::byte*>(copy.to), copy.from.data(),
                          Bytes{copy.from.size()});
  }
  stream().Precede(callers);
  return stream().status();
}

Status DeviceHome::FetchWeights(ModuleId module, const UnitMemory& to, int threads) {
  const offload::ShardLayout& layout = states_->layout();
  for (const TileId tile : layout.TilesOf(module)) {
    PENSTOCK_TRY(states_->ReadTile(tile, [&](std::span<const std::byte> weight, auto) -> Status {
      std::vector<Copy> copies;
      to.AddCopies(layout, tile, weight, copies);
      CopyAll(copies, threads);
      return {};
    }));
  }
  return {};
}

Status DeviceHome::AddGradient(const GradientInbox::Announced& gradient, const std::byte* values,
                               CuStream callers) {
  if (values != nullptr) stream().Follow(callers);
  if (gradient.sum) {
    AddToSum(gradient, values);
    if (gradient.rounds) RoundSum(gradient.module, gradient.tensor, *gradient.sum, gradient.place);
  } else {
    AddToPlace(gradient, values);
  }
  if (values != nullptr) stream().Precede(callers);
  return stream().status();
}

/// Adds nothing for zeros: a sum keeps its sign.
void DeviceHome::AddToSum(const GradientInbox::Announced& gradient, const std::byte* values) {
  float* const sum = sums_.as<float>() + *gradient.sum;
  if (values != nullptr) {
    operators_->AddGradient(stream(), values, gradient.dtype, gradient.elements, gradient.first,
                            sum);
  } else if (gradient.first) {
    stream().Zero(reinterpret_cast<std::byte*>(sum), Bytes{sizeof(float)} * gradient.elements);
  }
}

/// Without separate sums, a weight is fp32 or its gradient comes once.
void DeviceHome::AddToPlace(const GradientInbox::Announced& gradient, const std::byte* values) {
  const DType weight = WeightOf(gradient.module, gradient.tensor);
  const Bytes size = SizeOf(weight) * gradient.elements;
  if (values == nullptr) {
    if (gradient.first) stream().Zero(gradient.place, size);
  } else if (gradient.direct != nullptr) {
    stream().CopyOnDevice(gradient.direct, values, size);
  } else if (weight == DType::kFloat32) {
    operators_->AddGradient(stream(), values, gradient.dtype, gradient.elements, gradient.first,
                            reinterpret_cast<float*>(gradient.place));
  } else {
    operators_->RoundGradients(stream(), reinterpret_cast<const float*>(values), weight,
                               gradient.elements, gradient.place);
  }
}

void DeviceHome::RoundSum(ModuleId module, uint32_t tensor, uint64_t sum, std::byte* place) {
  operators_->RoundGradients(stream(), sums_.as<float>() + sum, WeightOf(module, tensor),
                             states_->layout().module(module).tensors[tensor].elements, place);
}

}  // namespace penstock::front
