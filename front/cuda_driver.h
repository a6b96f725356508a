// The functions used of CUDA's driver, with the names and types of its manual, without its headers.
//
// The library is loaded when it is first needed: a machine without a GPU does not have it.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

struct CUctx_st;
struct CUevent_st;
struct CUstream_st;

namespace penstock::front {

using CuContext = CUctx_st*;
using CuDevice = int;
using CuEvent = CUevent_st*;
using CuStream = CUstream_st*;
using CuDevicePointer = uint64_t;
using CuResult = int;

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr unsigned kCuHostRegisterPortable = 1;
inline constexpr unsigned kCuEventBlockingSync = 1;
inline constexpr unsigned kCuEventDisableTiming = 2;

struct CudaDriver {
  CuResult (*ctx_get_current)(CuContext* context);
  CuResult (*ctx_set_current)(CuContext context);
  CuResult (*ctx_synchronize)();
  CuResult (*ctx_get_device)(CuDevice* device);
  CuResult (*device_get_pci_bus_id)(char* id, int size, CuDevice device);
  CuResult (*stream_get_context)(CuStream stream, CuContext* context);
  CuResult (*mem_host_register)(void* data, size_t size, unsigned flags);
  CuResult (*mem_host_unregister)(void* data);
  CuResult (*memcpy_to_device)(CuDevicePointer to, const void* from, size_t size, CuStream stream);
  CuResult (*memcpy_to_host)(void* to, CuDevicePointer from, size_t size, CuStream stream);
  CuResult (*event_create)(CuEvent* event, unsigned flags);
  CuResult (*event_record)(CuEvent event, CuStream stream);
  CuResult (*event_synchronize)(CuEvent event);
  CuResult (*event_destroy)(CuEvent event);
  CuResult (*get_error_name)(CuResult error, const char** name);

  /// Ok for success; else a line with `doing` and the driver's name for the error.
  Status Check(CuResult result, const std::string& doing) const;
};

/// Returns the driver, which stays loaded. Errors: kUnavailable if it is not there, or too old.
Result<CudaDriver> LoadCudaDriver();

/// Returns the PCI bus id ("0000:3B:00.0") of the GPU whose context is current on the calling
/// thread. Empty if there is no such context, no driver, or no answer.
std::string CurrentPciBusId();

}  // namespace penstock::front
