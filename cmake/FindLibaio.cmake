# Libaio::Libaio, for find_package(Libaio): Debian's libaio-dev has neither a CMake nor a pkg-config
# file.
find_path(Libaio_INCLUDE_DIR libaio.h)
find_library(Libaio_LIBRARY aio)
mark_as_advanced(Libaio_INCLUDE_DIR Libaio_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libaio REQUIRED_VARS Libaio_LIBRARY Libaio_INCLUDE_DIR)

if(Libaio_FOUND AND NOT TARGET Libaio::Libaio)
  add_library(Libaio::Libaio UNKNOWN IMPORTED)
  set_target_properties(Libaio::Libaio PROPERTIES
    IMPORTED_LOCATION ${Libaio_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Libaio_INCLUDE_DIR})
endif()
