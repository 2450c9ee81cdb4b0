# -DHELIOS_ONLY=maco: a libhelios with MACO and groups of one node alone. It needs a C compiler and, for the GPU's kernels,
# nvcc; no other library. Tests and programs are not built.
function(hl_only_maco)
  hl_kernel_flags()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/maco/*.c)
  foreach(folder cuda group os) # of groups those of one node
    file(GLOB more CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.c)
    list(APPEND sources ${more})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "/os/(loop|logfile|copy_measure)") # the rest of src/os wants libc alone, and its parts come to need one another
  foreach(part base/abi base/buf base/cpu base/half base/heap base/log base/status base/text client/version)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/src/${part}.c)
  endforeach()
  add_library(helios SHARED ${sources})
  target_link_libraries(helios PRIVATE hl_options ${CMAKE_DL_LIBS} -Wl,--no-undefined)
  target_include_directories(helios PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
  set_target_properties(helios PROPERTIES SOVERSION 0 VERSION ${PROJECT_VERSION})
endfunction()
