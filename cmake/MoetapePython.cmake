# The Python extension. Wheels (scikit-build-core sets SKBUILD) install it; every other build puts it beside
# the package's sources, so that what Python imports is always what was built last.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

if(NOT SKBUILD)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/python/moetape")
endif()
add_subdirectory(python/bindings)

get_property(targets DIRECTORY "${PROJECT_SOURCE_DIR}/python/bindings" PROPERTY BUILDSYSTEM_TARGETS)
add_custom_target(moetape_python DEPENDS ${targets})

# Templates of the standard library are visible whatever the compiler is told; the linker can hide them.
set(version_script "${PROJECT_BINARY_DIR}/extension.map")
file(WRITE "${version_script}" "{ global: PyInit_*; local: *; };\n")
foreach(target IN LISTS targets)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "MODULE_LIBRARY")
    target_link_options(${target} PRIVATE "LINKER:--version-script=${version_script}")
  endif()
endforeach()
