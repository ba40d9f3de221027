# Offer dimorder to C and C++: find_package(dimorder).
#
#   cmake -Ddimorder_DIR="$(python -m dimorder.cmake)" ...
#
#   find_package(dimorder REQUIRED)
#   target_link_libraries(app PRIVATE dimorder::program dimorder::backends)
#
# dimorder::contract  The header dimorder/contract.h: C99, nothing beneath it.
# dimorder::program   The loader and guard of dimorder/program.h, compiled with the application. Needs ExecuTorch.
# dimorder::backends  What a .pte of dimorder's calls, of ExecuTorch's wheel: XNNPACK, portable and quantized
#                     kernels. Leave it out where you link backends and kernels of your own.
#
# ExecuTorch is found by executorch_DIR, CMAKE_PREFIX_PATH, or beside this package, as pip installs both. Where the
# project has built it from source (Android, iOS), its targets `executorch` and `extension_data_loader` are taken.

get_filename_component(_dimorder_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
get_filename_component(_dimorder_site "${_dimorder_root}/../.." ABSOLUTE)

if(NOT TARGET dimorder::contract)
  add_library(dimorder_contract INTERFACE)
  target_include_directories(dimorder_contract INTERFACE "${_dimorder_root}/include")
  add_library(dimorder::contract ALIAS dimorder_contract)
endif()

if(NOT TARGET executorch)
  if(NOT executorch_DIR AND EXISTS "${_dimorder_site}/executorch/share/cmake/executorch-config.cmake")
    set(executorch_DIR "${_dimorder_site}/executorch/share/cmake")
  endif()
  find_package(executorch QUIET CONFIG)
endif()

if(NOT TARGET dimorder::program AND (executorch_FOUND OR TARGET executorch))
  enable_language(C)
  add_library(
    dimorder_program STATIC EXCLUDE_FROM_ALL
    "${_dimorder_root}/src/argument_checks.cpp" "${_dimorder_root}/src/delegate_checks.cpp"
    "${_dimorder_root}/src/file.cpp" "${_dimorder_root}/src/program.cpp" "${_dimorder_root}/src/program_tables.cpp"
    "${_dimorder_root}/src/seal.cpp" "${_dimorder_root}/src/tensor.cpp" "${_dimorder_root}/src/transpose.c")
  target_compile_features(dimorder_program PUBLIC cxx_std_17)
  set_target_properties(dimorder_program PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(dimorder_program PUBLIC dimorder_contract)
  add_library(dimorder_backends INTERFACE)
  if(TARGET executorch::runtime)
    target_link_libraries(dimorder_program PUBLIC executorch::runtime)
    foreach(_dimorder_name backend_xnnpack kernels_optimized kernels_quantized)
      if(TARGET executorch::${_dimorder_name})
        target_link_libraries(dimorder_backends INTERFACE executorch::${_dimorder_name})
      endif()
    endforeach()
  elseif(TARGET executorch)
    target_link_libraries(dimorder_program PUBLIC executorch extension_data_loader)
  else() # CMake before 3.28, for which ExecuTorch offers variables
    target_include_directories(dimorder_program SYSTEM PUBLIC ${EXECUTORCH_INCLUDE_DIRS})
    target_compile_definitions(dimorder_program PUBLIC ${EXECUTORCH_COMPILE_DEFINITIONS})
    foreach(_dimorder_name ${EXECUTORCH_LIBRARIES} ${EXECUTORCH_QUANTIZED_KERNELS_LIBRARY})
      if(_dimorder_name MATCHES "executorch_(backend_xnnpack|kernels)")
        target_link_libraries(dimorder_backends INTERFACE "${_dimorder_name}")
      elseif(_dimorder_name MATCHES "libexecutorch\\.so|executorch_threadpool")
        target_link_libraries(dimorder_program PUBLIC "${_dimorder_name}")
      endif()
    endforeach()
    target_link_options(dimorder_program PUBLIC "LINKER:-rpath,${EXECUTORCH_RUNTIME_LIBRARY_DIR}")
  endif()
  add_library(dimorder::program ALIAS dimorder_program)
  add_library(dimorder::backends ALIAS dimorder_backends)
endif()

if(NOT TARGET dimorder::program)
  set(_dimorder_message
      "ExecuTorch was not found, so there is dimorder::contract alone. Give -Dexecutorch_DIR=...; with pip it is $(python -m dimorder.cmake --executorch)"
  )
  if(dimorder_FIND_COMPONENTS STREQUAL "contract")
    message(STATUS "dimorder: ${_dimorder_message}")
  else()
    set(dimorder_FOUND FALSE)
    set(dimorder_NOT_FOUND_MESSAGE "${_dimorder_message}")
  endif()
endif()
