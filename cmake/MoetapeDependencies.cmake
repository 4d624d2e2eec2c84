# Libraries from outside, under one kind of name: moetape_external_<name>. Nothing is downloaded.

option(MOETAPE_STANDALONE "Programs that need no library but C's where they run: one instruction set, fmt from headers" OFF)

# The rule for Highway is shared with the installed package, which needs it at link time.
include("${CMAKE_CURRENT_LIST_DIR}/MoetapeFindHighway.cmake")
find_package(fmt REQUIRED)
find_package(simdjson REQUIRED)
find_package(Threads REQUIRED)
find_path(MOETAPE_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

add_library(moetape_external_hwy INTERFACE)
add_library(moetape_external_fmt INTERFACE)
if(MOETAPE_STANDALONE)
  target_compile_definitions(moetape_external_hwy INTERFACE HWY_COMPILE_ONLY_STATIC)
  target_link_libraries(moetape_external_fmt INTERFACE fmt::fmt-header-only)
else()
  target_link_libraries(moetape_external_hwy INTERFACE moetape::highway)
  target_link_libraries(moetape_external_fmt INTERFACE fmt::fmt)
endif()

add_library(moetape_external_simdjson INTERFACE)
target_link_libraries(moetape_external_simdjson INTERFACE simdjson::simdjson)

add_library(moetape_external_threads INTERFACE)
target_link_libraries(moetape_external_threads INTERFACE Threads::Threads)

add_library(moetape_external_xxhash INTERFACE)
target_include_directories(moetape_external_xxhash SYSTEM INTERFACE "${MOETAPE_XXHASH_INCLUDE_DIR}")
target_compile_definitions(moetape_external_xxhash INTERFACE XXH_INLINE_ALL)

if(MOETAPE_BUILD_CLI)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json 3.11 REQUIRED)

  add_library(moetape_external_cli11 INTERFACE)
  target_link_libraries(moetape_external_cli11 INTERFACE CLI11::CLI11)

  add_library(moetape_external_json INTERFACE)
  target_link_libraries(moetape_external_json INTERFACE nlohmann_json::nlohmann_json)
endif()

if(MOETAPE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  include(GoogleTest)
endif()
if(MOETAPE_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
