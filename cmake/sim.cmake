# tests/sim: the simulator of moves of shards, beside the step function's own objects; faults planted in that source
# (mutants.py) or in its surroundings (--mutant) must be found. tests/sim/migration.pml: its model, exhausted by spin.
function(hl_sim_program name) # and the source that takes the place of its namesake in hl_core
  add_executable(${name} $<TARGET_OBJECTS:sim_world> ${ARGN})
  target_link_libraries(${name} PRIVATE hl_core)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

function(hl_sim_finds name) # a test that must end with a failing seed
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 600 PASS_REGULAR_EXPRESSION "shortened to [0-9]+ events")
endfunction()

function(hl_sim)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/sim/*.c)
  add_library(sim_world OBJECT ${sources})
  target_link_libraries(sim_world PRIVATE hl_core)
  target_include_directories(sim_world PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  hl_sim_program(sim_migration)
  add_test(NAME sim_migration COMMAND sim_migration 2000)
  set_tests_properties(sim_migration PROPERTIES LABELS unit TIMEOUT 600)
  foreach(fault epoch order journal fence hide stop quota inventory)
    hl_sim_finds(sim_migration_finds_${fault} sim_migration 10000 --mutant ${fault})
  endforeach()

  set(script ${CMAKE_SOURCE_DIR}/tests/sim/mutants.py)
  foreach(fault crc confirm grace domains itself device damaged unsure stop kept needed answers deadline erase early hidden)
    execute_process(COMMAND /usr/bin/python3 ${script} --file ${fault} OUTPUT_VARIABLE file COMMAND_ERROR_IS_FATAL ANY)
    set(mutant ${CMAKE_BINARY_DIR}/sim/${fault}_${file})
    add_custom_command(OUTPUT ${mutant} COMMAND /usr/bin/python3 ${script} ${fault} ${mutant}
      DEPENDS ${script} ${CMAKE_SOURCE_DIR}/src/core/migration/${file})
    set_source_files_properties(${mutant} PROPERTIES COMPILE_OPTIONS -w)
    hl_sim_program(sim_mutant_${fault} ${mutant})
    hl_sim_finds(sim_mutant_${fault} sim_mutant_${fault} 2000)
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/sim)

  if(NOT HELIOS_SANITIZE AND NOT CMAKE_CROSSCOMPILING) # its programs are spin's own
    add_test(NAME sim_model COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/sim/model.py)
    set_tests_properties(sim_model PROPERTIES LABELS unit TIMEOUT 900 SKIP_RETURN_CODE 77)
  endif()
endfunction()
