# Flags of everything that is compiled here.
find_package(Threads REQUIRED)

add_library(hl_options INTERFACE)
target_compile_options(hl_options INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wstrict-prototypes;-Wmissing-prototypes;-Wvla;-Wundef;-Wwrite-strings;-Wimplicit-fallthrough>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
  -funsigned-char -fvisibility=hidden -fno-omit-frame-pointer
  $<$<BOOL:${HELIOS_WERROR}>:-Werror>)
target_compile_definitions(hl_options INTERFACE _GNU_SOURCE HELIOS_VERSION="${PROJECT_VERSION}"
  $<$<BOOL:${HELIOS_AUDIT}>:HELIOS_AUDIT>)
target_link_libraries(hl_options INTERFACE Threads::Threads m)
target_link_options(hl_options INTERFACE -Wl,-z,relro,-z,now)
include(CheckPIESupported) # makes the linker, too, follow CMAKE_POSITION_INDEPENDENT_CODE
check_pie_supported()
if(NOT HELIOS_SANITIZE) # the sanitizers' own checks are better
  target_compile_options(hl_options INTERFACE -fstack-protector-strong $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
endif()
if(HELIOS_SANITIZE)
  target_compile_options(hl_options INTERFACE -fsanitize=${HELIOS_SANITIZE} -fno-sanitize-recover=undefined)
  target_link_options(hl_options INTERFACE -fsanitize=${HELIOS_SANITIZE})
endif()

# Of a test's own source, which runs for moments: without optimisation it is compiled in half the time. One that computes
# for seconds is optimised, and all are where the compiler shall see what may be wrong (HELIOS_WERROR) or programs are
# emulated. gold links in half the time (lld takes members of archives in another order); ld does it where there is no gold.
include(CheckLinkerFlag)
add_library(hl_test_options INTERFACE)
add_library(hl_test_computes INTERFACE)
if(NOT HELIOS_SANITIZE)
  target_compile_options(hl_test_computes INTERFACE -O1)
  if(HELIOS_WERROR OR CMAKE_CROSSCOMPILING)
    target_compile_options(hl_test_options INTERFACE -O1)
  else()
    target_compile_options(hl_test_options INTERFACE -O0 -U_FORTIFY_SOURCE)
  endif()
endif()
if(NOT HELIOS_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  check_linker_flag(C -fuse-ld=gold HL_HAS_GOLD)
  if(HL_HAS_GOLD)
    target_link_options(hl_test_options INTERFACE -fuse-ld=gold)
    target_link_options(hl_test_computes INTERFACE -fuse-ld=gold)
  endif()
endif()

# The kernels are plain loops that the compiler vectorises; only what torch fuses may be fused. A build without
# optimisation has none here either: with it these few files take longer to compile than all the others.
function(hl_kernel_flags)
  set(fast -O3)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug" AND NOT HELIOS_SANITIZE)
    set(fast "")
  endif()
  foreach(kernel base/half group/reduce hybridps/adam/adam hybridps/adam/norm)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/${kernel}.c PROPERTIES
      COMPILE_OPTIONS "${fast};-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
  endforeach()
  foreach(kernel body_elementwise body_matmul gemm gemm_few gemm_tile)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/maco/kernels/${kernel}.c PROPERTIES
      COMPILE_OPTIONS "${fast};-ffp-contract=off;-fno-math-errno;-fno-trapping-math")
  endforeach()
  # multiplies and adds in one step where the CPU can
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/maco/kernels/vec.c PROPERTIES
    COMPILE_OPTIONS "${fast};-ffp-contract=fast;-fno-math-errno;-fno-trapping-math")
endfunction()
