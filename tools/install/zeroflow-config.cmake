# find_package(zeroflow [COMPONENTS MPI CUDA NCCL]) gives
#
#     zeroflow::zeroflow   the folder of the headers and what they link: one file of the program is
#                          the implementation
#     zeroflow::llm        the same for zeroflow_llm.h
#     zeroflow::shared, zeroflow::static, zeroflow::llm_shared, zeroflow::llm_static
#                          the compiled libraries, where they are installed
#     zeroflow::mpi, zeroflow::cuda, zeroflow::nccl
#                          of the components: a source file that is compiled with the program (of
#                          CUDA in its language, with CUDA_STANDARD 17), and what it links
include(CMakeFindDependencyMacro)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_dependency(Threads)

# This file lies in PREFIX/share/cmake/zeroflow/.
get_filename_component(zeroflow_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(zeroflow_libraries "${zeroflow_prefix}/@LIBRARIES@")

if(NOT TARGET zeroflow::zeroflow)
    add_library(zeroflow::zeroflow INTERFACE IMPORTED)
    set_target_properties(zeroflow::zeroflow PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${zeroflow_prefix}/include"
        INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
    add_library(zeroflow::llm INTERFACE IMPORTED)
    set_target_properties(zeroflow::llm PROPERTIES
        INTERFACE_LINK_LIBRARIES zeroflow::zeroflow)
    set(zeroflow_pcre2 "")
    if(@PCRE2@)
        set(zeroflow_pcre2 pcre2-8)
        set_property(TARGET zeroflow::llm APPEND PROPERTY INTERFACE_LINK_LIBRARIES pcre2-8)
    else()
        set_property(TARGET zeroflow::llm PROPERTY INTERFACE_COMPILE_DEFINITIONS ZF_WITHOUT_PCRE2)
    endif()
endif()

# zeroflow_compiled(TARGET KIND FILE LINKS...): a library of that name, if it is installed.
macro(zeroflow_compiled target kind file)
    if(EXISTS "${zeroflow_libraries}/${file}" AND NOT TARGET ${target})
        add_library(${target} ${kind} IMPORTED)
        set_target_properties(${target} PROPERTIES
            IMPORTED_LOCATION "${zeroflow_libraries}/${file}"
            INTERFACE_LINK_LIBRARIES "${ARGN}")
    endif()
endmacro()
zeroflow_compiled(zeroflow::static STATIC libzeroflow.a zeroflow::zeroflow)
zeroflow_compiled(zeroflow::llm_static STATIC libzeroflow_llm.a zeroflow::static ${zeroflow_pcre2})
zeroflow_compiled(zeroflow::shared SHARED libzeroflow.so.@SERIES@ zeroflow::zeroflow)
zeroflow_compiled(zeroflow::llm_shared SHARED libzeroflow_llm.so.@SERIES@ zeroflow::shared)

# zeroflow_source(NAME FILE LINKS...): the component, which is a source file.
macro(zeroflow_source name file)
    if(NOT TARGET zeroflow::${name})
        add_library(zeroflow::${name} INTERFACE IMPORTED)
        set_target_properties(zeroflow::${name} PROPERTIES
            INTERFACE_SOURCES "${zeroflow_prefix}/share/zeroflow/${file}"
            INTERFACE_LINK_LIBRARIES "zeroflow::zeroflow;${ARGN}")
    endif()
endmacro()
foreach(zeroflow_component IN LISTS zeroflow_FIND_COMPONENTS)
    set(zeroflow_${zeroflow_component}_FOUND TRUE)
    if(zeroflow_component STREQUAL "MPI")
        find_dependency(MPI COMPONENTS C)
        zeroflow_source(mpi zeroflow_mpi.c MPI::MPI_C)
    elseif(zeroflow_component STREQUAL "CUDA")
        find_dependency(CUDAToolkit)
        zeroflow_source(cuda zeroflow_cuda.cu CUDA::cudart CUDA::cublasLt)
    elseif(zeroflow_component STREQUAL "NCCL")
        find_dependency(CUDAToolkit)
        find_library(zeroflow_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
        find_path(zeroflow_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
        mark_as_advanced(zeroflow_NCCL_LIBRARY zeroflow_NCCL_INCLUDE)
        if(zeroflow_NCCL_LIBRARY AND zeroflow_NCCL_INCLUDE)
            zeroflow_source(nccl zeroflow_nccl.c ${zeroflow_NCCL_LIBRARY} CUDA::cudart)
            set_property(TARGET zeroflow::nccl PROPERTY
                INTERFACE_INCLUDE_DIRECTORIES "${zeroflow_NCCL_INCLUDE}")
        else()
            set(zeroflow_NCCL_FOUND FALSE)
            set(zeroflow_why "there is no nccl.h, or no libnccl, next to it")
        endif()
    else()
        set(zeroflow_${zeroflow_component}_FOUND FALSE)
        set(zeroflow_why "components are MPI, CUDA and NCCL")
    endif()
    if(zeroflow_FIND_REQUIRED_${zeroflow_component} AND NOT zeroflow_${zeroflow_component}_FOUND)
        set(zeroflow_FOUND FALSE)
        set(zeroflow_NOT_FOUND_MESSAGE "zeroflow: ${zeroflow_component}: ${zeroflow_why}")
    endif()
endforeach()
unset(zeroflow_component)
unset(zeroflow_pcre2)
unset(zeroflow_libraries)
unset(zeroflow_prefix)
