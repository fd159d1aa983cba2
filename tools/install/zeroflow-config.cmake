# find_package(zeroflow) gives zeroflow::zeroflow, the folder of the headers and what they link, and
# zeroflow::llm, the same for zeroflow_llm.h.
include(CMakeFindDependencyMacro)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_dependency(Threads)

if(NOT TARGET zeroflow::zeroflow)
    # This file lies in PREFIX/share/cmake/zeroflow/.
    get_filename_component(zeroflow_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
    add_library(zeroflow::zeroflow INTERFACE IMPORTED)
    set_target_properties(zeroflow::zeroflow PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${zeroflow_prefix}/include"
        INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
    unset(zeroflow_prefix)
    add_library(zeroflow::llm INTERFACE IMPORTED)
    set_target_properties(zeroflow::llm PROPERTIES
        INTERFACE_LINK_LIBRARIES zeroflow::zeroflow)
    if(@PCRE2@)
        set_property(TARGET zeroflow::llm APPEND PROPERTY INTERFACE_LINK_LIBRARIES pcre2-8)
    else()
        set_property(TARGET zeroflow::llm PROPERTY INTERFACE_COMPILE_DEFINITIONS ZF_WITHOUT_PCRE2)
    endif()
endif()
