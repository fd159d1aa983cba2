/* The names of CUDA's runtime for HIP's, in C and C++. Each has the same meaning, unless a comment
 * says otherwise. */
#ifndef ZFD_HIP_NAMES
#define ZFD_HIP_NAMES

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#include <hip/hip_runtime_api.h>

/* The library of ROCm 5.2 (Debian 12) lacks it: programs are linked with that one too, where what
 * the host updates is an error. */
#pragma weak hipLaunchHostFunc
static inline hipError_t zfd_launch_host(hipStream_t stream, hipHostFn_t run, void *user)
{
    return hipLaunchHostFunc ? hipLaunchHostFunc(stream, run, user) : hipErrorNotSupported;
}

typedef hipError_t cudaError_t;
typedef hipStream_t cudaStream_t;
typedef hipEvent_t cudaEvent_t;
typedef hipGraph_t cudaGraph_t;
typedef hipGraphExec_t cudaGraphExec_t;
typedef hipDeviceProp_t cudaDeviceProp;
typedef enum hipMemcpyKind cudaMemcpyKind;
typedef struct hipFuncAttributes cudaFuncAttributes;

#define cudaSuccess                 hipSuccess
#define cudaErrorInvalidValue       hipErrorInvalidValue
#define cudaErrorMemoryAllocation   hipErrorOutOfMemory
#define cudaErrorNoDevice           hipErrorNoDevice
#define cudaErrorNotReady           hipErrorNotReady
#define cudaErrorInsufficientDriver hipErrorInsufficientDriver
#define cudaGetErrorString          hipGetErrorString
#define cudaGetLastError            hipGetLastError

#define cudaSetDevice                           hipSetDevice
#define cudaGetDeviceCount                      hipGetDeviceCount
#define cudaGetDeviceProperties                 hipGetDeviceProperties
#define cudaDeviceGetAttribute                  hipDeviceGetAttribute
#define cudaDeviceGetStreamPriorityRange        hipDeviceGetStreamPriorityRange
#define cudaDriverGetVersion                    hipDriverGetVersion
#define cudaDevAttrMultiProcessorCount          hipDeviceAttributeMultiprocessorCount
/* All of it: there is no smaller amount that must be exceeded by request. */
#define cudaDevAttrMaxSharedMemoryPerBlockOptin hipDeviceAttributeMaxSharedMemoryPerBlock

#define cudaMalloc               hipMalloc
#define cudaFree                 hipFree
#define cudaMemGetInfo           hipMemGetInfo
#define cudaHostAlloc            hipHostMalloc
#define cudaFreeHost             hipHostFree
#define cudaHostAllocDefault     hipHostMallocDefault
#define cudaHostAllocMapped      hipHostMallocMapped
#define cudaHostGetDevicePointer hipHostGetDevicePointer
#define cudaHostRegister         hipHostRegister
#define cudaHostRegisterMapped   hipHostRegisterMapped
#define cudaHostRegisterPortable hipHostRegisterPortable
#define cudaHostUnregister       hipHostUnregister
#define cudaMemcpyAsync          hipMemcpyAsync
#define cudaMemcpyDefault        hipMemcpyDefault
#define cudaMemcpyHostToDevice   hipMemcpyHostToDevice
#define cudaMemcpyDeviceToHost   hipMemcpyDeviceToHost
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemsetAsync          hipMemsetAsync

#define cudaStreamCreateWithFlags    hipStreamCreateWithFlags
#define cudaStreamCreateWithPriority hipStreamCreateWithPriority
#define cudaStreamNonBlocking        hipStreamNonBlocking
#define cudaStreamDestroy            hipStreamDestroy
#define cudaStreamQuery              hipStreamQuery
#define cudaStreamSynchronize        hipStreamSynchronize
#define cudaStreamWaitEvent          hipStreamWaitEvent
#define cudaLaunchHostFunc           zfd_launch_host
#define CUDART_CB

#define cudaEventCreate          hipEventCreate
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDisableTiming   hipEventDisableTiming
#define cudaEventDestroy         hipEventDestroy
#define cudaEventRecord          hipEventRecord
#define cudaEventQuery           hipEventQuery
#define cudaEventSynchronize     hipEventSynchronize
#define cudaEventElapsedTime     hipEventElapsedTime

#define cudaStreamBeginCapture       hipStreamBeginCapture
#define cudaStreamCaptureModeRelaxed hipStreamCaptureModeRelaxed
#define cudaStreamEndCapture         hipStreamEndCapture
#define cudaGraphDestroy             hipGraphDestroy
#define cudaGraphExecDestroy         hipGraphExecDestroy
#define cudaGraphLaunch              hipGraphLaunch
/* HIP has the parameters of CUDA 11. */
#define cudaGraphInstantiate(exec, graph, flags)                                                   \
    hipGraphInstantiateWithFlags((exec), (graph), (flags))

#endif
