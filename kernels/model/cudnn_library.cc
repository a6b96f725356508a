// Uses cudnn-frontend, which finds cuDNN's functions in the library loaded here.
#include "kernels/model/cudnn_library.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shared_library.h"
#include "device/cuda_status.h"

namespace cudnn_frontend {

/// The handle in which the headers look up cuDNN's functions.
void* cudnn_dlhandle = nullptr;

}  // namespace cudnn_frontend

namespace penstock::kernels {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

constexpr const char* kNeed = "attention by cuDNN";

/// The tensors of a graph, in the order of qkv.
enum TensorId : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kDOut,
  kDQuery,
  kDKey,
  kDValue
};

Status ToStatus(fe::error_t error, const char* doing) {
  if (error.is_good()) return {};
  return MakeError(ErrorCode::kUnavailable, "{}: {}: {}; change the shape, {}", kNeed, doing,
                   error.get_message(), kWithoutCudnn);
}

Status CudnnStatus(cudnnStatus_t status, const char* doing) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  return MakeError(ErrorCode::kUnavailable, "{}: {}: {}", kNeed, doing,
                   fe::detail::get_error_string(status));
}

/// What the headers throw (functions that are not there) becomes a Status.
template <typename F>
auto Caught(F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception&) {
    return MakeError(ErrorCode::kUnavailable,
                     "{}: it lacks functions that this program calls; install another version of "
                     "cuDNN 9, {}",
                     kNeed, kWithoutCudnn);
  }
}

class Graph final : public CudnnAttentionGraph {
 public:
  Graph(cudnnHandle_t handle, const CudnnAttentionSpec& spec) : handle_(handle), spec_(spec) {}

  Status Build(int sm_version) {
    graph_.set_io_data_type(spec_.dtype == DType::kBFloat16 ? fe::DataType_t::BFLOAT16
                                                            : fe::DataType_t::HALF);
    graph_.set_intermediate_data_type(fe::DataType_t::FLOAT);
    graph_.set_compute_data_type(fe::DataType_t::FLOAT);
    graph_.set_sm_version(sm_version);
    spec_.backward ? DescribeBackward() : DescribeForward();
    PENSTOCK_TRY(ToStatus(graph_.validate(), "it refuses the graph"));
    PENSTOCK_TRY(ToStatus(graph_.build_operation_graph(handle_), "it refuses the graph"));
    PENSTOCK_TRY(ToStatus(graph_.create_execution_plans({fe::HeurMode_t::A}), "it has no kernel"));
    PENSTOCK_TRY(ToStatus(graph_.check_support(), "it has no kernel"));
    PENSTOCK_TRY(ToStatus(graph_.build_plans(), "making a kernel"));
    int64_t bytes = 0;
    PENSTOCK_TRY(ToStatus(graph_.get_workspace_size(bytes), "asking for its memory"));
    workspace_ = Bytes{static_cast<uint64_t>(bytes)};
    return {};
  }

  Bytes workspace() const override { return workspace_; }

  Status Run(cudaStream_t stream, const CudnnAttentionData& data) override {
    const uint64_t part = spec_.width * SizeOf(spec_.dtype).value;
    auto* const qkv = const_cast<std::byte*>(data.qkv);  // NOLINT: it is read
    std::unordered_map<int64_t, void*> tensors{{kQuery, qkv},
                                               {kKey, qkv + part},
                                               {kValue, qkv + 2 * part},
                                               {kOut, data.out},
                                               {kStatistics, data.statistics}};
    if (spec_.backward) {
      tensors[kDOut] = const_cast<std::byte*>(data.d_out);  // NOLINT: it is read
      tensors[kDQuery] = data.d_qkv;
      tensors[kDKey] = data.d_qkv + part;
      tensors[kDValue] = data.d_qkv + 2 * part;
    }
    return Caught([&]() -> Status {
      PENSTOCK_TRY(CudnnStatus(fe::detail::set_stream(handle_, stream), "setting the stream"));
      return ToStatus(graph_.execute(handle_, tensors, data.workspace), "running it");
    });
  }

 private:
  std::vector<int64_t> Sizes() const {
    return {Int(spec_.batch), Int(spec_.heads), Int(spec_.sequence), Int(spec_.head_size)};
  }
  /// Returns the strides of a tensor whose rows are this many elements apart.
  std::vector<int64_t> Strides(uint64_t row) const {
    return {Int(spec_.sequence * row), Int(spec_.head_size), Int(row), 1};
  }
  static int64_t Int(uint64_t size) { return static_cast<int64_t>(size); }

  Tensor Input(TensorId id, uint64_t row) {
    return graph_.tensor(Tensor_attributes().set_uid(id).set_dim(Sizes()).set_stride(Strides(row)));
  }
  void Output(const Tensor& tensor, TensorId id, uint64_t row) const {
    tensor->set_output(true).set_uid(id).set_dim(Sizes()).set_stride(Strides(row));
  }
  float Scale() const { return 1 / std::sqrt(static_cast<float>(spec_.head_size)); }

  void DescribeForward() {
    const uint64_t in_qkv = 3 * spec_.width;
    const auto [out, statistics] =
        graph_.sdpa(Input(kQuery, in_qkv), Input(kKey, in_qkv), Input(kValue, in_qkv),
                    fe::graph::SDPA_attributes()
                        .set_name("attention")
                        .set_generate_stats(true)
                        .set_causal_mask(true)
                        .set_attn_scale(Scale()));
    Output(out, kOut, spec_.width);
    statistics->set_output(true).set_uid(kStatistics).set_data_type(fe::DataType_t::FLOAT);
  }

  void DescribeBackward() {
    const uint64_t in_qkv = 3 * spec_.width;
    const Tensor statistics = graph_.tensor(
        Tensor_attributes()
            .set_uid(kStatistics)
            .set_dim({Int(spec_.batch), Int(spec_.heads), Int(spec_.sequence), 1})
            .set_stride({Int(spec_.heads * spec_.sequence), Int(spec_.sequence), 1, 1})
            .set_data_type(fe::DataType_t::FLOAT));
    const auto [d_query, d_key, d_value] =
        graph_.sdpa_backward(Input(kQuery, in_qkv), Input(kKey, in_qkv), Input(kValue, in_qkv),
                             Input(kOut, spec_.width), Input(kDOut, spec_.width), statistics,
                             fe::graph::SDPA_backward_attributes()
                                 .set_name("gradient of attention")
                                 .set_causal_mask(true)
                                 .set_attn_scale(Scale())
                                 .set_deterministic_algorithm(true));
    Output(d_query, kDQuery, in_qkv);
    Output(d_key, kDKey, in_qkv);
    Output(d_value, kDValue, in_qkv);
  }

  const cudnnHandle_t handle_;
  const CudnnAttentionSpec spec_;
  fe::graph::Graph graph_;
  Bytes workspace_;
};

class Library final : public CudnnLibrary {
 public:
  Library(cudnnHandle_t handle, int sm_version) : handle_(handle), sm_version_(sm_version) {}
  ~Library() override { static_cast<void>(fe::detail::destroy_handle(handle_)); }

  Result<std::unique_ptr<CudnnAttentionGraph>> MakeAttention(
      const CudnnAttentionSpec& spec) override {
    return Caught([&]() -> Result<std::unique_ptr<CudnnAttentionGraph>> {
      auto graph = std::make_unique<Graph>(handle_, spec);
      PENSTOCK_TRY(graph->Build(sm_version_));
      return std::unique_ptr<CudnnAttentionGraph>(std::move(graph));
    });
  }

  std::string name() const override {
    const size_t version = fe::detail::get_backend_version();
    return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

 private:
  const cudnnHandle_t handle_;
  const int sm_version_;
};

/// The headers ask libcudart.so for some functions, though the program has its own.
Result<SharedLibrary> LoadLibraries() {
  const std::string advice = fmt::format(
      "install cuDNN 9 for CUDA 13 and name its folder in LD_LIBRARY_PATH, {}", kWithoutCudnn);
  PENSTOCK_TRY(SharedLibrary::Load("libcudart.so.13", kNeed, advice));
  return SharedLibrary::Load("libcudnn.so.9", kNeed, advice);
}

}  // namespace

Result<std::unique_ptr<CudnnLibrary>> LoadCudnn() {
  PENSTOCK_ASSIGN(const SharedLibrary library, LoadLibraries());
  fe::cudnn_dlhandle = library.handle();
  int device = 0;
  int major = 0;
  int minor = 0;
  PENSTOCK_TRY(device::CudaStatus(cudaGetDevice(&device), "asking for the current device"));
  const auto ask = [&](int& value, cudaDeviceAttr attribute) {
    return device::CudaStatus(cudaDeviceGetAttribute(&value, attribute, device),
                              "asking for the compute capability of device {}", device);
  };
  PENSTOCK_TRY(ask(major, cudaDevAttrComputeCapabilityMajor));
  PENSTOCK_TRY(ask(minor, cudaDevAttrComputeCapabilityMinor));
  return Caught([&]() -> Result<std::unique_ptr<CudnnLibrary>> {
    cudnnHandle_t handle = nullptr;
    PENSTOCK_TRY(CudnnStatus(fe::detail::create_handle(&handle), "starting"));
    return std::unique_ptr<CudnnLibrary>(std::make_unique<Library>(handle, 10 * major + minor));
  });
}

}  // namespace penstock::kernels
