# How a folder becomes a library, a program or a test. layers.txt is read here, so that what the checker
# allows and what the linker sees are the same list.
find_package(PkgConfig REQUIRED)
find_package(CapnProto REQUIRED)
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET libcurl)
pkg_check_modules(EXPAT REQUIRED IMPORTED_TARGET expat)
pkg_check_modules(SYSTEMD REQUIRED IMPORTED_TARGET libsystemd)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

# Libraries that programs load when they first need them (os/late.h): a start without them takes half the time.
foreach(late CURL UCX ZMQ)
  add_library(hl_headers_${late} INTERFACE)
  target_include_directories(hl_headers_${late} SYSTEM INTERFACE $<TARGET_PROPERTY:PkgConfig::${late},INTERFACE_INCLUDE_DIRECTORIES>)
endforeach()

# Third-party code is fenced: only these modules may see these libraries.
set(HL_THIRD_base PkgConfig::ZLIB)
set(HL_THIRD_auth PkgConfig::CRYPTO)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
  list(APPEND HL_THIRD_base PkgConfig::ISAL)
endif()
set(HL_THIRD_os PkgConfig::UV)
set(HL_THIRD_conf PkgConfig::YAML PkgConfig::JANSSON)
set(HL_THIRD_api PkgConfig::JANSSON)
set(HL_THIRD_core PkgConfig::JANSSON)
set(HL_THIRD_ranktable PkgConfig::JANSSON)
set(HL_THIRD_kube PkgConfig::JANSSON)
set(HL_THIRD_ranktabled PkgConfig::JANSSON)
set(HL_THIRD_volcano PkgConfig::JANSSON)
set(HL_THIRD_store PkgConfig::SQLITE PkgConfig::JANSSON)
set(HL_THIRD_net hl_headers_UCX hl_headers_ZMQ PkgConfig::ZSTD)
set(HL_THIRD_curl hl_headers_CURL)
set(HL_THIRD_rpc CapnProto::capnp-rpc)
set(HL_THIRD_hw PkgConfig::HWLOC PkgConfig::JANSSON PkgConfig::SYSTEMD)
set(HL_THIRD_http PkgConfig::MICROHTTPD)
set(HL_THIRD_mem PkgConfig::JANSSON PkgConfig::EXPAT PkgConfig::CRYPTO)

# C structs, tables and calls of api/v1/helios.capnp; <api/types.h>, <rpc/l3_calls.h> ... are found in `out`/.
function(hl_api_types out)
  set(made ${CMAKE_BINARY_DIR}/api/c)
  set(files ${made}/api/types.c ${made}/api/types.h ${made}/rpc/controller_calls.h ${made}/rpc/agent_calls.h ${made}/rpc/l3_calls.h)
  add_custom_command(OUTPUT ${files}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tools/gen_api.py ${CMAKE_SOURCE_DIR}/api/v1/helios.capnp ${CAPNP_INCLUDE_DIRECTORY} ${made}
    DEPENDS ${CMAKE_SOURCE_DIR}/api/v1/helios.capnp ${CMAKE_SOURCE_DIR}/tools/gen_api.py
    COMMENT "C structs of helios.capnp")
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# The generated half of api/v1/helios.capnp.
function(hl_capnp out)
  set(CAPNPC_SRC_PREFIX ${CMAKE_SOURCE_DIR}/api/v1)
  set(CAPNPC_OUTPUT_DIR ${CMAKE_BINARY_DIR}/api)
  file(MAKE_DIRECTORY ${CAPNPC_OUTPUT_DIR})
  capnp_generate_cpp(sources headers ${CMAKE_SOURCE_DIR}/api/v1/helios.capnp)
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# Cap'n Proto's headers take longer to compile than most files that include them: those are compiled together.
function(hl_rpc_together generated)
  set_target_properties(hl_rpc PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(part address count greeting message outcome runtime)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/src/rpc/${part}.cpp PROPERTIES UNITY_GROUP parts)
  endforeach()
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/rpc/schema.cpp ${generated} PROPERTIES UNITY_GROUP schema)
endfunction()

function(hl_module name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.c)
  if(name STREQUAL "rpc")
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/rpc/*.c ${CMAKE_SOURCE_DIR}/src/rpc/*.cpp)
  elseif(name STREQUAL "api")
    hl_api_types(generated)
    list(APPEND sources ${generated})
  endif()
  if(NOT sources)
    add_library(hl_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    if(name STREQUAL "rpc")
      hl_capnp(generated)
      list(APPEND sources ${generated})
    endif()
    add_library(hl_${name} STATIC ${sources})
    set(scope PUBLIC)
    if(name STREQUAL "rpc")
      target_include_directories(hl_rpc PRIVATE ${CMAKE_BINARY_DIR}/api)
      hl_rpc_together(${generated})
    elseif(name STREQUAL "api")
      target_include_directories(hl_api PUBLIC ${CMAKE_BINARY_DIR}/api/c)
    endif()
  endif()
  target_include_directories(hl_${name} ${scope} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(hl_${name} ${scope} hl_options ${HL_THIRD_${name}})
  foreach(dep ${ARGN})
    target_link_libraries(hl_${name} ${scope} hl_${dep})
  endforeach()
endfunction()

# A module is one library, with all of its wings; what a wing may use is linked to it, too.
function(hl_modules)
  hl_kernel_flags()
  file(STRINGS ${CMAKE_SOURCE_DIR}/layers.txt lines REGEX "^[a-z0-9/]+:")
  foreach(line ${lines})
    string(REGEX MATCH "^[a-z0-9]+" name ${line})
    string(REGEX REPLACE "^[a-z0-9/]+: *" "" deps "${line}")
    separate_arguments(deps)
    list(TRANSFORM deps REPLACE "/.*" "")
    list(REMOVE_DUPLICATES deps)
    if(line MATCHES "^[a-z0-9]+/")
      list(REMOVE_ITEM deps ${name})
      foreach(dep ${deps})
        target_link_libraries(hl_${name} PUBLIC hl_${dep})
      endforeach()
    elseif(NOT name STREQUAL "cmd")
      hl_module(${name} ${deps})
    else()
      set(HL_CMD_DEPS ${deps} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# All of four modules, whose objects are compiled once, and what they use of others.
function(hl_library)
  foreach(module client group hybridps maco)
    list(APPEND objects $<TARGET_OBJECTS:hl_${module}>)
  endforeach()
  add_library(helios SHARED ${objects})
  set_target_properties(helios PROPERTIES LINKER_LANGUAGE C SOVERSION 0 VERSION ${PROJECT_VERSION})
  target_link_libraries(helios PRIVATE hl_client hl_mem -Wl,--exclude-libs,ALL)
  target_include_directories(helios PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_SOURCE_DIR}/src)
endfunction()

# cmd/NAME.c is one program; cmd/cli is `helios`, of which all but the table of commands is a library for the unit tests.
function(hl_programs)
  file(GLOB_RECURSE parts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmd/cli/*.c)
  list(REMOVE_ITEM parts ${CMAKE_SOURCE_DIR}/cmd/cli/helios.c)
  add_library(hl_cmd STATIC ${parts})
  target_include_directories(hl_cmd PUBLIC ${CMAKE_SOURCE_DIR}/cmd)
  foreach(dep ${HL_CMD_DEPS})
    target_link_libraries(hl_cmd PUBLIC hl_${dep})
  endforeach()
  file(GLOB mains CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmd/*.c ${CMAKE_SOURCE_DIR}/cmd/cli/helios.c)
  foreach(main ${mains})
    get_filename_component(name ${main} NAME_WE)
    add_executable(${name}_prog ${main})
    set_target_properties(${name}_prog PROPERTIES OUTPUT_NAME ${name})
    list(APPEND programs ${name}_prog)
    target_include_directories(${name}_prog PRIVATE ${CMAKE_SOURCE_DIR}/cmd)
    if(name STREQUAL "helios")
      target_link_libraries(helios_prog PRIVATE hl_cmd)
    endif()
    foreach(dep ${HL_CMD_DEPS})
      target_link_libraries(${name}_prog PRIVATE hl_${dep})
    endforeach()
  endforeach()
  set(HL_PROGRAMS ${programs} PARENT_SCOPE)
endfunction()

# tests/unit/MODULE/[WING/]test_X.c (.cpp where it speaks to generated C++) tests src/MODULE;
# tests/integration/test_X.c may use every module.
function(hl_tests)
  add_library(shm_left OBJECT ${CMAKE_SOURCE_DIR}/tests/support/shm_left.c)
  target_link_libraries(shm_left PRIVATE hl_options)
  # main of every test, what its TEST(name) registers with, and bytes for it.
  add_library(test_main OBJECT ${CMAKE_SOURCE_DIR}/tests/support/test_main.c ${CMAKE_SOURCE_DIR}/tests/support/bytes.c)
  target_link_libraries(test_main PRIVATE hl_options PkgConfig::CMOCKA)
  target_include_directories(test_main PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  # A CUDA driver for tests, loaded by dlopen as the real one is.
  add_library(cuda_stub SHARED ${CMAKE_SOURCE_DIR}/tests/support/cuda_stub.c
    ${CMAKE_SOURCE_DIR}/tests/support/cuda_stub_copy.c ${CMAKE_SOURCE_DIR}/tests/support/cuda_stub_run.c)
  target_link_libraries(cuda_stub PRIVATE hl_options)
  # Thread-local memory that the loader allocates later is misjudged by ThreadSanitizer.
  target_compile_options(cuda_stub PRIVATE -ftls-model=initial-exec)
  target_include_directories(cuda_stub PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  set_target_properties(cuda_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # The library of NVIDIA's driver for tests, with the GPUs that a file says.
  add_library(nvml_stub SHARED ${CMAKE_SOURCE_DIR}/tests/support/nvml_stub.c)
  target_link_libraries(nvml_stub PRIVATE hl_options)
  set_target_properties(nvml_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # Preloaded by tests/chaos: daemons whose wall clock jumps.
  add_library(clock_jump SHARED ${CMAKE_SOURCE_DIR}/tests/support/clock_jump.c)
  target_link_libraries(clock_jump PRIVATE hl_options)
  set_target_properties(clock_jump PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_library(rpc_json STATIC ${CMAKE_SOURCE_DIR}/tests/support/rpc_json.c)
  target_link_libraries(rpc_json PUBLIC hl_rpc)
  target_include_directories(rpc_json PUBLIC ${CMAKE_SOURCE_DIR}/tests)
  # Calls that tests/chaos/moves.py makes.
  add_executable(rpc_lines ${CMAKE_SOURCE_DIR}/tests/support/rpc_lines.c)
  target_link_libraries(rpc_lines PRIVATE rpc_json)
  set_target_properties(rpc_lines PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # What tests/e2e/test_hybridps_asked.py asks for.
  add_executable(hybridps_ask ${CMAKE_SOURCE_DIR}/tests/support/hybridps_ask.c)
  target_link_libraries(hybridps_ask PRIVATE hl_hybridps)
  set_target_properties(hybridps_ask PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # What tests/e2e/test_strangers.py sends to daemons.
  add_executable(strangers ${CMAKE_SOURCE_DIR}/tests/support/strangers.c ${CMAKE_SOURCE_DIR}/tests/support/stranger_seeds.c)
  target_link_libraries(strangers PRIVATE hl_base)
  target_include_directories(strangers PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  set_target_properties(strangers PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  foreach(version 21805 22809 22902) # without windows, with them, with their addresses
    set(name nccl_stub_${version})
    add_library(${name} SHARED ${CMAKE_SOURCE_DIR}/tests/support/nccl_stub.c)
    if(version GREATER_EQUAL 22800)
      target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/nccl_stub_window.c)
    endif()
    target_compile_definitions(${name} PRIVATE NCCL_STUB_VERSION=${version})
    target_link_libraries(${name} PRIVATE hl_options cuda_stub)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
      ${CMAKE_SOURCE_DIR}/tests)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  endforeach()
  # libhelios_nvshmem against a stand-in for NVSHMEM.
  add_library(nvshmem_stub SHARED ${CMAKE_SOURCE_DIR}/tests/support/nvshmem_stub.c)
  target_link_libraries(nvshmem_stub PRIVATE hl_options cuda_stub)
  add_library(helios_nvshmem_stub SHARED ${CMAKE_SOURCE_DIR}/src/maco/cuda/nvshmem/plugin.cpp)
  target_link_libraries(helios_nvshmem_stub PRIVATE hl_options nvshmem_stub)
  target_include_directories(helios_nvshmem_stub PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/nvshmem)
  foreach(name nvshmem_stub helios_nvshmem_stub)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  endforeach()
  # The GPU kernels compiled for the CPU, which that driver runs in a GPU's place.
  add_library(cuda_cpu_kernels SHARED ${CMAKE_SOURCE_DIR}/tests/support/cuda_cpu_kernels.cpp)
  target_link_libraries(cuda_cpu_kernels PRIVATE hl_options hl_test_computes)
  target_compile_definitions(cuda_cpu_kernels PRIVATE HL_NCCL_DEVICE)
  target_include_directories(cuda_cpu_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include
    ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/tests/support/nccl_device)
  set_target_properties(cuda_cpu_kernels PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  file(GLOB_RECURSE units CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests/unit/test_*.c
       ${CMAKE_SOURCE_DIR}/tests/unit/test_*.cpp)
  foreach(source ${units})
    string(REGEX REPLACE "^tests/unit/([^/]+)/.*" "\\1" module ${source})
    get_filename_component(name ${source} NAME_WE)
    hl_test(${module}_${name} ${source} unit 180 hl_${module})
    if(module STREQUAL "rpc")
      target_link_libraries(${module}_${name} PRIVATE rpc_json)
    endif()
    if(module STREQUAL "net") # some speak to it by themselves
      target_link_libraries(${module}_${name} PRIVATE PkgConfig::UCX PkgConfig::ZMQ)
    endif()
    if(module STREQUAL "hw")
      add_dependencies(${module}_${name} nvml_stub)
    endif()
  endforeach()
  hl_test_with(group_test_shm_pair group/shm_pair
    "SHELL:-include ${CMAKE_SOURCE_DIR}/tests/unit/group/shm_pair_delays.h")
  hl_test_with(group_test_shm_join group/shm_wait -Dhl_process_ended=process_ended_at_last)
  hl_test_with(hw_test_executor_unreadable hw/process/process_executor_watch -Dhl_spec_file_read=spec_read_or_fail)
  hl_test_with(maco_test_bodies_portable "maco/kernels/gemm_few;maco/kernels/gemm_tile;maco/kernels/vec" -DHL_PORTABLE)
  foreach(cpu plain avx2) # the bodies' other builds
    if(TARGET maco_test_bodies)
      add_test(NAME maco_test_bodies_${cpu} COMMAND maco_test_bodies)
      set_tests_properties(maco_test_bodies_${cpu} PROPERTIES LABELS unit TIMEOUT 360 SKIP_RETURN_CODE 77
        ENVIRONMENT HELIOS_CPU=${cpu})
    endif()
  endforeach()
  # Threads that spin for each other: beside other tests they wait for a processor most of the time, and take theirs.
  # maco_test_cuda_run is none of them: it waits for deadlines, as long alone as beside others.
  foreach(name cuda_protocol runtime)
    if(TARGET maco_test_${name})
      set_tests_properties(maco_test_${name} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
  # Where CUDA is installed, our declarations of its driver are held against its own.
  find_path(HL_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include)
  if(TARGET cuda_test_driver AND HL_CUDA_INCLUDE)
    target_include_directories(cuda_test_driver SYSTEM PRIVATE ${HL_CUDA_INCLUDE})
  endif()
  find_path(HL_NCCL_INCLUDE nccl.h PATHS /usr/local/cuda/include)
  if(TARGET maco_test_cuda_nccl AND HL_NCCL_INCLUDE)
    target_include_directories(maco_test_cuda_nccl SYSTEM PRIVATE ${HL_NCCL_INCLUDE})
  endif()
  file(GLOB integration CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/integration/test_*.c)
  foreach(source ${integration})
    get_filename_component(name ${source} NAME_WE)
    set(libs "")
    foreach(dep ${HL_CMD_DEPS})
      list(APPEND libs hl_${dep})
    endforeach()
    hl_test(integration_${name} ${source} integration 360 rpc_json ${libs})
  endforeach()
  foreach(name mem_test_device mem_test_device_cuda mem_test_plank mem_test_tier_conformance
          integration_test_store_route integration_test_store_device hybridps_test_pool_kernels)
    if(TARGET ${name})
      add_dependencies(${name} cuda_stub)
    endif()
  endforeach()
  foreach(name cuda_run cuda_window cuda_nvshmem)
    if(TARGET maco_test_${name})
      target_sources(maco_test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/cuda_image_stub.c)
      add_dependencies(maco_test_${name} cuda_stub cuda_cpu_kernels nccl_stub_21805 nccl_stub_22809 nccl_stub_22902
        helios_nvshmem_stub)
    endif()
  endforeach()
  if(TARGET helios_prog)
    add_test(NAME docs_config COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tools/gen_conf_docs.py
      $<TARGET_FILE:helios_prog> --check)
  endif()
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/e2e/test_*.py)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    file(STRINGS ${script} torch REGEX "import torch|needs\\.torch")
    if(torch)
      set(script ${CMAKE_SOURCE_DIR}/tests/support/with_torch.py ${script})
    endif()
    add_test(NAME e2e_${name} COMMAND /usr/bin/python3 ${script})
    set(timeout 300)
    # minutes of rounds, kills or random programs; training of four ranks; some hundred containers in turn
    if(name MATCHES "test_chaos|test_moves|kill_moments|first_steps|test_podman|test_replace|hybridps_fuzz")
      set(timeout 660)
    endif()
    # One thread for torch's matrices: the processors are taken by the tests beside it.
    set_tests_properties(e2e_${name} PROPERTIES LABELS e2e TIMEOUT ${timeout} SKIP_RETURN_CODE 77
      ENVIRONMENT "OMP_NUM_THREADS=1;HELIOS_AGENT_HEALTH=false;HELIOS_L3_PREFAULT=false;HELIOS_BUILD=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/python:${CMAKE_SOURCE_DIR}/tests")
  endforeach()
endfunction()

# tests/tools: what checks the sources is checked, too.
function(hl_tool_tests)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/tools/test_*.py)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    add_test(NAME tools_${name} COMMAND /usr/bin/python3 ${script})
    set_tests_properties(tools_${name} PROPERTIES LABELS unit TIMEOUT 180)
  endforeach()
endfunction()

# A planted fault: without the releases of MACO's counters and queues ThreadSanitizer must find a race, or it would
# not find a real one.
function(hl_maco_mutant)
  if(NOT HELIOS_SANITIZE STREQUAL "thread")
    return()
  endif()
  set(sources tests/unit/maco/cpu/test_runtime.c)
  foreach(part collective_check complete load policy_direct policy_scheduler policy_static record report ring
          run_once runtime task thread)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/src/maco/cpu/${part}.c)
  endforeach()
  hl_test(maco_mutant_release "${sources}" unit 120 hl_maco)
  target_compile_definitions(maco_mutant_release PRIVATE HL_MACO_MUTATE_RELEASE)
  set(mutants maco_mutant_release)
  foreach(part protocol peers) # the kernel's, on the CPU
    hl_test(maco_mutant_cuda_${part} ${CMAKE_SOURCE_DIR}/tests/unit/maco/cuda/device/test_cuda_${part}.cpp unit 120 hl_maco)
    target_compile_definitions(maco_mutant_cuda_${part} PRIVATE HL_GPU_MUTATE_RELEASE)
    list(APPEND mutants maco_mutant_cuda_${part})
  endforeach()
  set_tests_properties(${mutants} PROPERTIES PASS_REGULAR_EXPRESSION "data race"
    ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1")
endfunction()

# MACO's CPU runtime on a machine whose loads may be late: its sources, with other atomics beneath them. Planted
# faults, functions without sequential consistency, must be found there.
function(hl_maco_weak)
  if(HELIOS_SANITIZE OR NOT TARGET hl_maco) # it changes stacks by itself
    return()
  endif()
  set(sources tests/unit/maco/cpu/weak_orders.c tests/support/weak_memory.c)
  foreach(part collective_check complete load policy_direct policy_scheduler policy_static record report ring
          run_once runtime task thread)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/src/maco/cpu/${part}.c)
  endforeach()
  hl_test(maco_weak_orders "${sources}" unit 120 hl_maco)
  set(header ${CMAKE_SOURCE_DIR}/tests/support/weak_memory.h)
  target_compile_options(maco_weak_orders PRIVATE -include ${header})
  target_compile_definitions(maco_weak_orders PRIVATE LOOKS=1 SPINS=3 SPINS_FEW=3)
  set_source_files_properties(tests/support/weak_memory.c PROPERTIES COMPILE_DEFINITIONS WM_REAL)
  foreach(function start_run has_call mark_parked run_batch hl_maco_spsc_room hl_maco_event_add hl_maco_fired hl_maco_enter
          hl_maco_leave hl_maco_quiet)
    add_test(NAME maco_weak_mutant_${function} COMMAND maco_weak_orders ${function} 50)
    set_tests_properties(maco_weak_mutant_${function} PROPERTIES LABELS unit TIMEOUT 360
      PASS_REGULAR_EXPRESSION "a wake-up was lost|[1-9][0-9]* after it")
  endforeach()
endfunction()

# tests/net: real daemons on "hosts" made of namespaces; peer.c is the end that the scripts drive.
function(hl_net_tests)
  add_executable(net_peer ${CMAKE_SOURCE_DIR}/tests/net/peer.c)
  target_link_libraries(net_peer PRIVATE hl_net rpc_json PkgConfig::JANSSON)
  set_target_properties(net_peer PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/net/test_*.py)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    add_test(NAME net_${name} COMMAND /usr/bin/python3 ${script})
    set_tests_properties(net_${name} PROPERTIES LABELS net TIMEOUT 300 SKIP_RETURN_CODE 77
      ENVIRONMENT "HELIOS_AGENT_HEALTH=false;HELIOS_L3_PREFAULT=false;HELIOS_BUILD=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/python:${CMAKE_SOURCE_DIR}/tests")
  endforeach()
endfunction()

# Against a real kube-apiserver.
function(hl_k8s_tests)
  file(GLOB scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/k8s/test_*.py)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    add_test(NAME k8s_${name} COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/k8s/run.py --if-built -p ${name}.py)
    set_tests_properties(k8s_${name} PROPERTIES LABELS k8s TIMEOUT 1500 SKIP_RETURN_CODE 77
      ENVIRONMENT "HELIOS_AGENT_HEALTH=false;HELIOS_L3_PREFAULT=false;HELIOS_BUILD=${CMAKE_BINARY_DIR};PYTHONPATH=${CMAKE_SOURCE_DIR}/python:${CMAKE_SOURCE_DIR}/tests")
  endforeach()
endfunction()

# Where tests run side by side the longest begin first, so that none is left alone at the end. Those that need
# kube-apiserver are the last where it is compiled beside the tests.
function(hl_test_order)
  file(STRINGS ${CMAKE_SOURCE_DIR}/tests/seconds.txt lines REGEX "^[a-z]")
  foreach(line ${lines})
    separate_arguments(line)
    list(GET line 0 name)
    list(GET line 1 seconds)
    if(TEST ${name})
      set_tests_properties(${name} PROPERTIES COST ${seconds})
    endif()
  endforeach()
  execute_process(COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/support/apiserver_build.py --made
    RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
  if(missing)
    set_tests_properties(k8s_test_gangs k8s_test_ranktable PROPERTIES COST -1)
  endif()
endfunction()

function(hl_test name source label timeout)
  if(HELIOS_SANITIZE)
    math(EXPR timeout "${timeout} * 3")
  elseif(CMAKE_CROSSCOMPILING) # emulated
    math(EXPR timeout "${timeout} * 10")
  endif()
  add_executable(${name} ${source} $<TARGET_OBJECTS:shm_left> $<TARGET_OBJECTS:test_main>)
  target_link_libraries(${name} PRIVATE ${ARGN} PkgConfig::CMOCKA PkgConfig::JANSSON)
  if(source MATCHES "unit/maco/cuda|unit/group|unit/whatif|queue_random|reshard_families|test_tensors|test_place_|tier_conformance|test_remote|reshard_run")
    target_link_libraries(${name} PRIVATE hl_test_computes)
  elseif(NOT source MATCHES "unit/maco") # the others compute for long
    target_link_libraries(${name} PRIVATE hl_test_options)
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  if(source MATCHES "\\.cpp$")
    target_include_directories(${name} PRIVATE ${CMAKE_BINARY_DIR}/api)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "HELIOS_AGENT_HEALTH=false;HELIOS_L3_PREFAULT=false;HELIOS_BUILD=${CMAKE_BINARY_DIR};HELIOS_SOURCE=${CMAKE_SOURCE_DIR}")
endfunction()

# A test that has sources of the product compiled with other options; the linker takes these functions instead of the
# library's.
function(hl_test_with name sources)
  if(NOT TARGET ${name})
    return()
  endif()
  list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/src/)
  list(TRANSFORM sources APPEND .c)
  add_library(${name}_with OBJECT ${sources})
  string(REGEX MATCH "^[a-z]+" module ${name})
  target_link_libraries(${name}_with PRIVATE hl_${module})
  target_include_directories(${name}_with PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_options(${name}_with PRIVATE ${ARGN})
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_with>)
endfunction()

# tests/vm/X.c: programs that the virtual machine of ./run test-vm runs; not tests of this machine.
function(hl_vm_programs)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/vm/*.c)
  add_custom_target(vm_programs)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(vm_${name} ${source})
    target_link_libraries(vm_${name} PRIVATE hl_mem hl_net hl_hw)
    target_include_directories(vm_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    set_target_properties(vm_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/vm)
    add_dependencies(vm_programs vm_${name})
  endforeach()
endfunction()

# tests/fuzz/fuzz_X.c (.cpp where it speaks to generated C++) with a corpus in tests/fuzz/corpus/X.
# Without HELIOS_FUZZ they are only compiled, by ./run check, so that they fit the headers they use.
function(hl_fuzzers)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.cpp)
  set(modules hl_core hl_program hl_net hl_hybridps hl_kube hl_volcano hl_ranktable hl_rpc hl_mem hl_whatif)
  if(NOT HELIOS_FUZZ)
    add_library(fuzz_sources OBJECT ${sources})
    target_link_libraries(fuzz_sources PRIVATE ${modules} hl_maco)
    target_include_directories(fuzz_sources PRIVATE ${CMAKE_BINARY_DIR}/api)
    return()
  endif()
  add_custom_target(fuzzers)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" corpus ${name})
    add_executable(${name} ${source})
    add_dependencies(fuzzers ${name})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE ${modules})
    if(name STREQUAL "fuzz_maco") # its kernels take minutes to compile
      target_link_libraries(${name} PRIVATE hl_maco)
    endif()
    target_include_directories(${name} PRIVATE ${CMAKE_BINARY_DIR}/api)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/corpus/${corpus}) # finds stay out of the tree
    add_test(NAME ${name} COMMAND ${name} -max_total_time=15 -rss_limit_mb=2048 -max_len=4096
      -artifact_prefix=${CMAKE_BINARY_DIR}/fuzz/ ${CMAKE_BINARY_DIR}/corpus/${corpus}
      ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${corpus})
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 90)
  endforeach()
endfunction()

# What is installed: bin/, lib/libhelios.so.0, include/helios, lib/helios/python (what helios-agent puts on PYTHONPATH),
# lib/systemd/system, share/man, completions, share/doc/helios. A component is what one Debian package has of it
# (tools/deb.py).
function(hl_install)
  include(GNUInstallDirs)
  install(TARGETS ${HL_PROGRAMS} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  install(TARGETS helios LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
  add_custom_target(installed DEPENDS ${HL_PROGRAMS} helios) # all that `cmake --install` takes
  if(TARGET helios_nvshmem)
    install(TARGETS helios_nvshmem LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
    add_dependencies(installed helios_nvshmem)
  endif()
  configure_file(${CMAKE_SOURCE_DIR}/cmake/helios.pc.in ${CMAKE_BINARY_DIR}/helios.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/helios.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/helios DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
    FILES_MATCHING PATTERN "*.h")
  install(FILES ${CMAKE_SOURCE_DIR}/api/v1/helios.capnp DESTINATION ${CMAKE_INSTALL_DATADIR}/helios COMPONENT development)
  foreach(package helios hybridps maco)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/python/${package} DESTINATION lib/helios/python COMPONENT python
      FILES_MATCHING PATTERN "*.py" PATTERN py.typed PATTERN __pycache__ EXCLUDE)
  endforeach()
  install(FILES ${CMAKE_SOURCE_DIR}/python/helios.pth DESTINATION lib/python3/dist-packages COMPONENT python)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy/systemd/ DESTINATION lib/systemd/system COMPONENT programs
    FILES_MATCHING PATTERN "*.service")
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/helios.sysusers DESTINATION lib/sysusers.d COMPONENT programs
    RENAME helios.conf)
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/helios.yaml DESTINATION ${CMAKE_INSTALL_DATADIR}/helios
    COMPONENT example)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs
    FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs
    FILES_MATCHING PATTERN "*.py" PATTERN "*.yaml" PATTERN __pycache__ EXCLUDE)
  hl_manual()
endfunction()

# Manual pages and shell completion, written by the programs that were built. Programs for another processor or with a
# sanitizer are not run for it.
function(hl_manual)
  if(CMAKE_CROSSCOMPILING OR HELIOS_SANITIZE OR NOT EXISTS /usr/bin/python3)
    message(STATUS "no manual pages and no shell completion are made in this build")
    return()
  endif()
  set(made ${CMAKE_BINARY_DIR}/manual)
  file(GLOB generators CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/gen_manual.py ${CMAKE_SOURCE_DIR}/tools/roff.py
    ${CMAKE_SOURCE_DIR}/tools/gen_completion.py ${CMAKE_SOURCE_DIR}/deploy/completion.*)
  add_custom_command(OUTPUT ${made}/stamp
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tools/gen_manual.py ${CMAKE_BINARY_DIR}/bin ${made}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tools/gen_completion.py ${CMAKE_BINARY_DIR}/bin/helios ${made}
    COMMAND ${CMAKE_COMMAND} -E touch ${made}/stamp
    DEPENDS helios_prog helios-ranktable_prog ${generators} ${CMAKE_SOURCE_DIR}/docs/job.md
      ${CMAKE_SOURCE_DIR}/deploy/systemd/helios.yaml ${CMAKE_SOURCE_DIR}/deploy/debian/changelog
    COMMENT "Manual pages and completion")
  add_custom_target(manual ALL DEPENDS ${made}/stamp)
  add_dependencies(installed manual)
  foreach(section 1 5 8)
    install(DIRECTORY ${made}/man${section} DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT manual)
  endforeach()
  install(FILES ${made}/helios DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT manual)
  install(FILES ${made}/_helios DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT manual)
endfunction()
