# find_package(zeroflow) gives zeroflow::zeroflow: the header's folder and what it links.
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
endif()
