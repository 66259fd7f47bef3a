# fathom_library(<folder> SRCS .. HDRS .. DEPS .. LIBS ..)
#   One static library per folder. DEPS are fathom folders and are checked against the table below;
#   LIBS are public outside libraries, PRIVATE_LIBS are used in .cc files only.
# fathom_test(<name> SRCS .. DEPS .. LIBS .. LABELS ..)
#   One GoogleTest program; every test case in it becomes a ctest entry with the labels.
#
# Headers are compiled alone by the target `all_verify_interface_header_sets`.

# Which folder may use which (docs/architecture.md, "Folders"). A new arrow is a change here first.
set(FATHOM_MAY_USE_base "")
set(FATHOM_MAY_USE_checkpoint base)
set(FATHOM_MAY_USE_tokenizer base)
set(FATHOM_MAY_USE_chat base tokenizer)
set(FATHOM_MAY_USE_grammar base tokenizer chat)
set(FATHOM_MAY_USE_backend base)
set(FATHOM_MAY_USE_backend_reference base backend)
set(FATHOM_MAY_USE_backend_cpu base backend)
set(FATHOM_MAY_USE_backend_cuda base backend)
set(FATHOM_MAY_USE_backend_cuda_unfused base backend backend_cuda)
set(FATHOM_MAY_USE_backend_plugin base backend)
set(FATHOM_MAY_USE_model base checkpoint backend)
set(FATHOM_MAY_USE_cache base backend)
set(FATHOM_MAY_USE_engine base checkpoint backend backend_reference backend_cpu backend_cuda backend_plugin cache model)
set(FATHOM_MAY_USE_load base)
set(FATHOM_MAY_USE_bench base checkpoint backend backend_reference backend_cpu backend_cuda backend_cuda_unfused backend_plugin cache model engine load)
set(FATHOM_MAY_USE_replay base tokenizer chat engine)
set(FATHOM_MAY_USE_http base)
set(FATHOM_MAY_USE_server base tokenizer chat grammar engine http)

set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

add_library(fathom_options INTERFACE)
set(FATHOM_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Werror
  # gcc 12's flow warnings see overlaps and overruns in inlined std::string and std::vector code that are
  # none (gcc bugs 105651, 107852); clang and the sanitizers watch over the same mistakes.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow>
  # clang builds the fuzzers only; gcc is the one whose warnings are errors.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-error>)
target_compile_options(fathom_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${FATHOM_WARNINGS};-fno-math-errno;-ffp-contract=off>")
if(FATHOM_CUDA)
  # -fmad=false: a product is rounded before it is added unless the code says fma, as on the host. nvcc's
  # generated host code is left out of -Wconversion and -Wshadow; its own checks cover ours.
  target_compile_options(fathom_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off>")
endif()
if(FATHOM_SANITIZE)
  target_compile_options(fathom_options INTERFACE
    -fsanitize=${FATHOM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(fathom_options INTERFACE -fsanitize=${FATHOM_SANITIZE})
endif()

function(fathom_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS;LIBS;PRIVATE_LIBS" ${ARGN})
  foreach(dep IN LISTS ARG_DEPS)
    if(NOT dep IN_LIST FATHOM_MAY_USE_${name})
      message(FATAL_ERROR "${name} must not depend on ${dep}; see the table in cmake/fathom.cmake")
    endif()
  endforeach()
  add_library(fathom_${name} STATIC ${ARG_SRCS})
  target_sources(fathom_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HDRS})
  target_include_directories(fathom_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  list(TRANSFORM ARG_DEPS PREPEND fathom_)
  target_link_libraries(fathom_${name} PUBLIC ${ARG_DEPS} ${ARG_LIBS} PRIVATE fathom_options ${ARG_PRIVATE_LIBS})
endfunction()

include(GoogleTest)
function(fathom_test name)
  if(NOT FATHOM_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;LIBS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SRCS})
  list(TRANSFORM ARG_DEPS PREPEND fathom_)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} ${ARG_LIBS} fathom_options GTest::gmock GTest::gtest_main)
  # Tests run in the source folder and name files relative to it: nothing about a checkout's place is
  # compiled in, so caches of compiled files serve all checkouts.
  file(RELATIVE_PATH bin ${PROJECT_SOURCE_DIR} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  target_compile_definitions(${name} PRIVATE FATHOM_SOURCE_DIR="." FATHOM_BINARY_DIR="./${bin}")
  # Names begin with the program, so that `ctest -R` can pick programs.
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600)
endfunction()
