# libhelios_nvshmem, the plug-in of src/maco/cuda/nvshmem: built where NVSHMEM's headers and its host library are. libhelios
# loads it when it is asked for and needs nothing of it.
function(hl_nvshmem)
  find_path(HL_NVSHMEM_INCLUDE nvshmemx.h PATHS $ENV{NVSHMEM_HOME} PATH_SUFFIXES include nvshmem)
  find_library(HL_NVSHMEM_LIBRARY nvshmem_host PATHS $ENV{NVSHMEM_HOME} PATH_SUFFIXES lib)
  find_path(HL_CUDART_INCLUDE cuda_runtime.h PATHS /usr/local/cuda/include)
  if(NOT HL_NVSHMEM_INCLUDE OR NOT HL_NVSHMEM_LIBRARY OR NOT HL_CUDART_INCLUDE)
    return()
  endif()
  add_library(helios_nvshmem MODULE ${CMAKE_SOURCE_DIR}/src/maco/cuda/nvshmem/plugin.cpp)
  target_include_directories(helios_nvshmem PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(helios_nvshmem SYSTEM PRIVATE ${HL_NVSHMEM_INCLUDE} ${HL_CUDART_INCLUDE})
  target_link_libraries(helios_nvshmem PRIVATE hl_options ${HL_NVSHMEM_LIBRARY})
  # Found beside the library that loads it.
  set_target_properties(helios PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
endfunction()
