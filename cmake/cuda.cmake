# Whether and how the CUDA side is built: sets PENSTOCK_HAS_CUDA, PENSTOCK_HAS_NCCL if there is what
# several ranks on GPUs are compiled with, and PENSTOCK_HAS_CUDNN if there is what attention by cuDNN
# is compiled with: cuDNN's header, and cudnn-frontend (scripts/cudnn-frontend fetches it).
include_guard(GLOBAL)

set(PENSTOCK_HAS_CUDA OFF)
set(PENSTOCK_HAS_NCCL OFF)
set(PENSTOCK_HAS_CUDNN OFF)
if(PENSTOCK_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(PENSTOCK_HAS_CUDA ON)
  elseif(NOT PENSTOCK_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR
      "PENSTOCK_CUDA is ON, but there is no CUDA toolkit: set CUDAToolkit_ROOT, or PENSTOCK_CUDA=OFF")
  endif()
endif()
if(NOT PENSTOCK_HAS_CUDA)
  return()
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(NCCL_INCLUDE_DIR)
if(NCCL_INCLUDE_DIR)
  set(PENSTOCK_HAS_NCCL ON)
endif()

set(cache $ENV{XDG_CACHE_HOME})
if(NOT cache)
  set(cache $ENV{HOME}/.cache)
endif()
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
  HINTS ${cache}/penstock/cudnn-frontend/include ${CUDAToolkit_INCLUDE_DIRS})
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR)
if(CUDNN_INCLUDE_DIR AND CUDNN_FRONTEND_INCLUDE_DIR)
  set(PENSTOCK_HAS_CUDNN ON)
else()
  message(STATUS "Attention by cuDNN is left out: no cudnn.h, or scripts/cudnn-frontend did not run")
endif()

# Machine code for the A100, the H100 and the B200 and what is binary compatible with them, and PTX
# for what comes later.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "CUDA's compiler")
enable_language(CUDA)
# CMake 3.25 does not know that nvcc takes C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)

# As on the CPU: fused multiply-adds where they are written and nowhere else. Functions that are
# constexpr run on the device as well, so that rounding is written once.
# fmt 9 needs to be told that nvcc's functions may be constexpr.
target_compile_definitions(penstock_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_compile_options(penstock_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>"
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${PENSTOCK_WERROR}>>:-Werror=all-warnings>)
