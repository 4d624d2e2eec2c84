# The one library that others link: moetape::moetape, made of the objects of all rooms.

get_property(room_targets GLOBAL PROPERTY MOETAPE_ROOM_TARGETS)
list(TRANSFORM room_targets REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE room_objects)

add_library(moetape STATIC ${room_objects})
add_library(moetape::moetape ALIAS moetape)
set_target_properties(moetape PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(moetape PUBLIC cxx_std_20)
target_include_directories(moetape PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:include>")
target_link_libraries(moetape PRIVATE moetape::highway Threads::Threads)
