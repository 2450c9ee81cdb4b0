# The GPU kernels of src/maco/cuda/device: one cubin for each generation that this nvcc knows (a cubin runs on later chips of
# its generation), PTX of the oldest for all others, in one fatbin that src/maco/cuda/host/image.c puts into the library.
# Nothing here links CUDA: the driver loads the fatbin. Without nvcc the library has the CPU's runtime alone.
set(HELIOS_CUDA OFF CACHE STRING "GPU kernels: OFF or AUTO (where nvcc is; it compiles for minutes)")
set(HELIOS_CUDA_ARCHS "" CACHE STRING "Architectures of the GPU kernels, as 80;90; empty: the oldest of each generation")

function(hl_cuda_architectures out)
  execute_process(COMMAND ${HL_NVCC} --list-gpu-arch OUTPUT_VARIABLE list OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCHALL "[0-9]+" all "${list}")
  list(SORT all COMPARE NATURAL)
  set(${out} ${all} PARENT_SCOPE)
endfunction()

# The oldest of each generation: 75, 80, 90, 100...
function(hl_cuda_generations out)
  foreach(arch ${ARGN})
    math(EXPR generation "${arch} / 10")
    if(NOT DEFINED seen_${generation})
      set(seen_${generation} 1)
      list(APPEND oldest ${arch})
    endif()
  endforeach()
  set(${out} ${oldest} PARENT_SCOPE)
endfunction()

# What compiles the kernel that reads NCCL's windows: the header of its device API, since 2.28. Empty without it.
function(hl_nccl_device bin out)
  find_path(HL_NCCL_DEVICE_INCLUDE nccl_device.h PATHS ${bin}/../include)
  if(HL_NCCL_DEVICE_INCLUDE)
    file(STRINGS ${HL_NCCL_DEVICE_INCLUDE}/nccl.h line REGEX "define NCCL_VERSION_CODE +[0-9]+")
    string(REGEX MATCH "[0-9]+$" version "${line}")
    if(version GREATER_EQUAL 22800)
      set(${out} -DHL_NCCL_DEVICE -isystem ${HL_NCCL_DEVICE_INCLUDE} PARENT_SCOPE)
    endif()
  endif()
endfunction()

# What the library says of itself where it has no kernels.
function(hl_no_cuda why)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/maco/cuda/host/image.c PROPERTIES
    COMPILE_DEFINITIONS "HL_NO_FATBIN=\"${why}\"")
endfunction()

# The fatbin, and the test of what is in it.
function(hl_cuda)
  if(HELIOS_CUDA STREQUAL "OFF")
    hl_no_cuda("it was built with HELIOS_CUDA=OFF")
    return()
  endif()
  find_program(HL_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT HL_NVCC)
    message(STATUS "no nvcc: MACO has no GPU kernels")
    hl_no_cuda("nvcc was not found when it was built")
    return()
  endif()
  hl_cuda_architectures(all)
  if(HELIOS_CUDA_ARCHS)
    set(archs ${HELIOS_CUDA_ARCHS})
  else()
    hl_cuda_generations(archs ${all})
  endif()
  list(GET archs 0 oldest)
  get_filename_component(bin ${HL_NVCC} DIRECTORY)
  set(dir ${CMAKE_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${dir})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/maco/cuda/device/*)
  hl_nccl_device(${bin} nccl)
  set(nvcc ${HL_NVCC} -std=c++17 -O3 -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR}/include ${nccl})
  set(kernel ${CMAKE_SOURCE_DIR}/src/maco/cuda/device/kernel.cu)
  foreach(arch ${archs})
    set(cubin ${dir}/kernel.sm_${arch}.cubin)
    # What ptxas says of registers is kept for the test.
    add_custom_command(OUTPUT ${cubin}
      COMMAND sh -c "log=$1; shift; \"$@\" >$log 2>&1 || { cat $log; exit 1; }" sh ${dir}/kernel.sm_${arch}.txt
        ${nvcc} -cubin -arch=sm_${arch} -Xptxas -v -o ${cubin} ${kernel}
      DEPENDS ${sources} ${CMAKE_SOURCE_DIR}/include/helios/maco.h COMMENT "GPU kernels for ${arch}" VERBATIM)
    list(APPEND files ${cubin})
    list(APPEND images --image3=kind=elf,sm=${arch},file=${cubin})
  endforeach()
  set(ptx ${dir}/kernel.compute_${oldest}.ptx)
  add_custom_command(OUTPUT ${ptx} COMMAND ${nvcc} -ptx -arch=compute_${oldest} -o ${ptx} ${kernel}
    DEPENDS ${sources} ${CMAKE_SOURCE_DIR}/include/helios/maco.h COMMENT "GPU kernels as PTX" VERBATIM)
  set(fatbin ${dir}/kernel.fatbin)
  add_custom_command(OUTPUT ${fatbin} COMMAND ${bin}/fatbinary --create=${fatbin} -64 ${images}
    --image3=kind=ptx,sm=${oldest},file=${ptx} DEPENDS ${files} ${ptx} COMMENT "GPU kernels" VERBATIM)
  add_custom_target(hl_fatbin DEPENDS ${fatbin})
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/maco/cuda/host/image.c PROPERTIES
    COMPILE_DEFINITIONS "HL_FATBIN=\"${fatbin}\"" OBJECT_DEPENDS ${fatbin})
  list(JOIN archs "," built)
  add_test(NAME maco_kernels COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tools/check_kernels.py ${HL_NVCC}
    ${CMAKE_SOURCE_DIR} ${dir} ${built} ${nccl})
  set_tests_properties(maco_kernels PROPERTIES LABELS cuda TIMEOUT 600 SKIP_RETURN_CODE 77)
endfunction()
