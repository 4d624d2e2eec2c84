# Makes moetape::highway from Highway's own CMake package, or else from the library and header alone.
if(NOT TARGET moetape::highway)
  find_package(hwy CONFIG QUIET)
  if(TARGET hwy::hwy)
    add_library(moetape::highway INTERFACE IMPORTED)
    target_link_libraries(moetape::highway INTERFACE hwy::hwy)
  else()
    find_library(MOETAPE_HIGHWAY_LIBRARY hwy REQUIRED)
    find_path(MOETAPE_HIGHWAY_INCLUDE_DIR hwy/highway.h REQUIRED)
    add_library(moetape::highway UNKNOWN IMPORTED)
    set_target_properties(moetape::highway PROPERTIES
      IMPORTED_LOCATION "${MOETAPE_HIGHWAY_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${MOETAPE_HIGHWAY_INCLUDE_DIR}")
  endif()
endif()
