# -DHELIOS_ONLY=maco: a libhelios with MACO and groups of one node alone. It needs a C compiler and, for the GPU's kernels,
# nvcc; no other library. Tests and programs are not built.
function(hl_only_maco)
  hl_kernel_flags()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/maco/*.c)
  foreach(folder base cuda group os) # of groups those of one node
    file(GLOB more CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.c)
    list(APPEND sources ${more})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "/(base/(copy|crc32).*|os/(loop|logfile|copy_measure))[.]c$") # the rest needs libc alone
  list(APPEND sources ${CMAKE_SOURCE_DIR}/src/client/version.c)
  add_library(helios SHARED ${sources})
  target_link_libraries(helios PRIVATE hl_options ${CMAKE_DL_LIBS} -Wl,--no-undefined)
  target_include_directories(helios PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
  set_target_properties(helios PROPERTIES SOVERSION 0 VERSION ${PROJECT_VERSION})
endfunction()
