# moetape_room(<room> SOURCES <file>... [TESTS <file>...] [BENCHES <file>...] [DEPENDS <room>...]
#              [PRIVATE <library>...])
#
# Makes the library moetape_<room> and, where asked for, the programs moetape_<room>_test and
# moetape_<room>_bench. DEPENDS names rooms of lower levels. PRIVATE names libraries from outside (fmt, hwy,
# simdjson, threads, xxhash): rooms above see them too, users of moetape never do.
function(moetape_room room)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;TESTS;BENCHES;DEPENDS;PRIVATE")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "moetape_room(${room}): SOURCES missing, or not understood: ${arg_UNPARSED_ARGUMENTS}")
  endif()

  set(target moetape_${room})
  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE moetape_settings)
  list(TRANSFORM arg_DEPENDS PREPEND moetape_)
  list(TRANSFORM arg_PRIVATE PREPEND moetape_external_)
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY MOETAPE_ROOM_TARGETS ${target})

  if(arg_TESTS)
    moetape_test(${target}_test SOURCES ${arg_TESTS} LIBRARIES ${target})
  endif()
  if(arg_BENCHES)
    moetape_bench(${target}_bench SOURCES ${arg_BENCHES} LIBRARIES ${target})
  endif()
endfunction()

# moetape_test(<name> SOURCES <file>... LIBRARIES <target>... [LABELS <label>...]): one GoogleTest program,
# each of its tests a test of ctest. Tests with the label "race" are what `make tsan` builds and runs.
function(moetape_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES;LABELS")
  if(NOT MOETAPE_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE moetape_settings ${arg_LIBRARIES} rapidcheck
                                        GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600 LABELS "${arg_LABELS}")
  if("race" IN_LIST arg_LABELS)
    add_dependencies(moetape_race_tests ${name})
  endif()
endfunction()

# moetape_bench(<name> SOURCES <file>... LIBRARIES <target>...): one Google Benchmark program.
function(moetape_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  if(NOT MOETAPE_BUILD_BENCH)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE moetape_settings ${arg_LIBRARIES} benchmark::benchmark_main)
endfunction()
