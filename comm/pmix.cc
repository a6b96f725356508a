#include "comm/pmix.h"

#include <fmt/format.h>
#include <pmix.h>

#include <cstring>
#include <optional>
#include <thread>
#include <utility>

namespace penstock::comm {
namespace {

constexpr const char* kPublishedKey = "penstock.rank0";
constexpr std::chrono::milliseconds kPollPause{50};

Error PmixError(const std::string& what, pmix_status_t why) {
  return MakeError(ErrorCode::kUnavailable,
                   "PMIx: {}: {}; PMIX_RANK is set: start the ranks with mpirun or srun "
                   "--mpi=pmix, or unset it",
                   what, ::PMIx_Error_string(why));
}

/// A number of the job, or of this process in it.
std::optional<uint32_t> NumberOf(const pmix_proc_t& process, const char* key) {
  pmix_value_t* value = nullptr;
  if (::PMIx_Get(&process, key, nullptr, 0, &value) != PMIX_SUCCESS || value == nullptr) return {};
  std::optional<uint32_t> number;
  if (value->type == PMIX_UINT32) number = value->data.uint32;
  if (value->type == PMIX_UINT16) number = value->data.uint16;
  PMIX_VALUE_RELEASE(value);
  return number;
}

class PmixClient final : public Pmix {
 public:
  explicit PmixClient(const pmix_proc_t& self) : self_(self) {}
  ~PmixClient() override { ::PMIx_Finalize(nullptr, 0); }

  Status ReadPlace() {
    const std::optional<uint32_t> size = NumberOf(Wildcard(), PMIX_JOB_SIZE);
    if (!size.has_value() || self_.rank >= *size) {
      return PmixError("the number of ranks", PMIX_ERR_NOT_FOUND);
    }
    place_ = {.size = *size,
              .rank = self_.rank,
              .local_size = NumberOf(Wildcard(), PMIX_LOCAL_SIZE),
              .local_rank = NumberOf(self_, PMIX_LOCAL_RANK)};
    return {};
  }

  const Place& place() const override { return place_; }

  Status Publish(const std::string& text) override {
    pmix_value_t value;
    PMIX_VALUE_CONSTRUCT(&value);
    PMIX_VALUE_LOAD(&value, text.c_str(), PMIX_STRING);
    pmix_status_t status = ::PMIx_Put(PMIX_GLOBAL, kPublishedKey, &value);
    PMIX_VALUE_DESTRUCT(&value);
    if (status == PMIX_SUCCESS) status = ::PMIx_Commit();
    if (status == PMIX_SUCCESS) return {};
    return PmixError("the address of rank 0 cannot be published", status);
  }

  Result<std::string> Fetch(std::chrono::seconds timeout) override {
    pmix_proc_t first = self_;
    first.rank = 0;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    // A service that waits for the value itself would do so for ever.
    pmix_info_t wait;
    auto seconds = static_cast<int>(timeout.count());
    PMIX_INFO_CONSTRUCT(&wait);
    PMIX_INFO_LOAD(&wait, PMIX_TIMEOUT, &seconds, PMIX_INT);
    while (true) {
      pmix_value_t* value = nullptr;
      const pmix_status_t status = ::PMIx_Get(&first, kPublishedKey, &wait, 1, &value);
      if (status == PMIX_SUCCESS && value != nullptr) {
        std::string text = value->type == PMIX_STRING ? value->data.string : "";
        PMIX_VALUE_RELEASE(value);
        return text;
      }
      // The service may answer at once that rank 0 has left nothing yet. A fence would wait, but
      // not name a rank that does not come to it.
      if (std::chrono::steady_clock::now() >= deadline) {
        return MakeError(ErrorCode::kUnavailable,
                         "rank 0 of {} did not join within {} s (PMIx: {})", place_.size,
                         timeout.count(), ::PMIx_Error_string(status));
      }
      std::this_thread::sleep_for(kPollPause);
    }
  }

 private:
  pmix_proc_t Wildcard() const {
    pmix_proc_t all = self_;
    all.rank = PMIX_RANK_WILDCARD;
    return all;
  }

  pmix_proc_t self_;
  Place place_;
};

}  // namespace

Result<std::unique_ptr<Pmix>> Pmix::Start() {
  pmix_proc_t self;
  PMIX_PROC_CONSTRUCT(&self);
  const pmix_status_t status = ::PMIx_Init(&self, nullptr, 0);
  if (status != PMIX_SUCCESS) return PmixError("its service does not answer", status);
  auto client = std::make_unique<PmixClient>(self);
  PENSTOCK_TRY(client->ReadPlace());
  return std::unique_ptr<Pmix>(std::move(client));
}

}  // namespace penstock::comm
