# CUDA, where it is asked for: the compiler, one list of architectures, and the runtime linked in whole, so that
# what is built loads on machines without a driver. Everywhere else MOETAPE_CUDA is off, and the same functions
# say that this build has no CUDA.

option(MOETAPE_CUDA "Build the recorder for CUDA devices" OFF)
if(NOT MOETAPE_CUDA)
  return()
endif()

# Before the language is enabled; PTX of the newest for what comes behind it.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100 CACHE STRING "CUDA architectures")
endif()
find_program(MOETAPE_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
if(MOETAPE_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${MOETAPE_NVCC}" CACHE FILEPATH "CUDA compiler")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

add_library(moetape_external_cuda INTERFACE)
target_link_libraries(moetape_external_cuda INTERFACE CUDA::cudart_static)

# C++20 by an explicit flag: CMake 3.25 does not know that this compiler has it.
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")

add_library(moetape_cuda_settings INTERFACE)
target_compile_options(moetape_cuda_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
