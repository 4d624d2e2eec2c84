# The one library that others link, moetape::moetape, made of the objects of all rooms, and its package.

get_property(room_targets GLOBAL PROPERTY MOETAPE_ROOM_TARGETS)
list(TRANSFORM room_targets REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE room_objects)

add_library(moetape STATIC ${room_objects})
add_library(moetape::moetape ALIAS moetape)
set_target_properties(moetape PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(moetape PUBLIC cxx_std_20)
target_include_directories(moetape PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:include>")
target_link_libraries(moetape PRIVATE fmt::fmt moetape::highway simdjson::simdjson Threads::Threads)

# A wheel carries the extension only.
if(SKBUILD)
  return()
endif()

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/moetape")
set(package_build_dir "${PROJECT_BINARY_DIR}/package")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/moetapeConfig.cmake.in"
  "${package_build_dir}/moetapeConfig.cmake" INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${package_build_dir}/moetapeConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)

install(TARGETS moetape EXPORT moetapeTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/moetape" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT moetapeTargets NAMESPACE moetape:: DESTINATION "${package_dir}")
install(FILES "${package_build_dir}/moetapeConfig.cmake" "${package_build_dir}/moetapeConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/MoetapeFindHighway.cmake"
        DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/NOTICE"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/moetape")
