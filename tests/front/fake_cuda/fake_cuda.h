/* CUDA's driver as far as libpenstock.so and its tests call it, without a GPU: a libcuda.so.1 that
 * keeps device memory in a table, runs each stream on a thread of its own with delays, and notes
 * what is wrong with how it is used:
 *   - copies from and to host memory that is not registered, and registrations that end under them
 *   - host memory that is read or written while a copy of it is under way: what a copy will write
 *     is 0xff from the moment it is enqueued, and what it reads is compared when it runs
 *   - device memory that was freed or never allocated, or is freed under a copy
 *   - streams and events that are destroyed while they are in use
 *   - host functions that call the driver, and calls without a current context
 * An event of one context cannot be recorded on a stream of another one.
 * Addresses of device memory are none of the host's, so a host that follows one ends at once.
 *
 * What is declared here is for tests; the driver's functions are those of its manual. */
#ifndef PENSTOCK_TESTS_FRONT_FAKE_CUDA_H_
#define PENSTOCK_TESTS_FRONT_FAKE_CUDA_H_

/* A header for C as well; its names are CUDA's.
 * NOLINTBEGIN(modernize-deprecated-headers,modernize-use-using,readability-identifier-naming) */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUctx_st* CUcontext;
typedef struct CUevent_st* CUevent;
typedef struct CUstream_st* CUstream;
typedef uint64_t CUdeviceptr;
typedef int CUdevice;
typedef int CUresult;

CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetDevice(CUdevice* device);
CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice device);
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetInfo_v2(size_t* free, size_t* total);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream);
CUresult cuMemHostRegister_v2(void* data, size_t size, unsigned flags);
CUresult cuMemHostUnregister(void* data);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t size, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventQuery(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void*), void* argument);
CUresult cuGetErrorName(CUresult error, const char** name);

/* Makes a context; none is current at first. */
CUcontext fake_cuda_context(void);
/* The bus id that the driver tells of every device from now on; before, of none. */
void fake_cuda_pci_bus_id(const char* id);
/* Where the bytes of device memory are, for kernels of tests. */
void* fake_cuda_memory(CUdeviceptr address, size_t size);
/* How much memory the device has from now on (at first 1 TiB). */
void fake_cuda_resize(size_t size);
/* The most device memory that was allocated at once since the last call. */
size_t fake_cuda_peak(void);
/* Counts all memory of the host as the device's as well, at its own addresses: for tests whose
 * kernels are the host's own. */
void fake_cuda_share_memory(void);
/* Has device memory lie at addresses that kernels can follow which are compiled for the host. */
void fake_cuda_map_memory(void);
/* Makes an event that may be recorded again and destroyed while it is in use, as CUDA's may. */
CUresult fake_cuda_lenient_event(CUevent* event);
/* Enqueues a kernel. */
CUresult fake_cuda_launch(CUstream stream, void (*kernel)(void*), void* argument);
/* Between these, no stream goes on. */
void fake_cuda_pause(void);
void fake_cuda_resume(void);
/* Has the call number `after` (from 0) of a function from now on fail. */
void fake_cuda_fail(const char* function, unsigned after, CUresult error);
/* Has the device fail: work that is enqueued is not done, and everything returns `error`. 0: ends
 * that. */
void fake_cuda_break(CUresult error);
/* How many copies were enqueued since the process began. */
uint64_t fake_cuda_copies(void);
/* How many registrations and events there are. */
size_t fake_cuda_registered(void);
size_t fake_cuda_events(void);
/* How many bytes of the host are registered. */
size_t fake_cuda_registered_bytes(void);
/* Whether copies to the host leave it as it is, and so take no time of the CPU, as those of a GPU
 * take none: for measurements. */
void fake_cuda_free_copies(int free);
/* Returns what was noted since the last call, a line each; valid until the next call. */
const char* fake_cuda_violations(void);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers,modernize-use-using,readability-identifier-naming) */

#endif /* PENSTOCK_TESTS_FRONT_FAKE_CUDA_H_ */
