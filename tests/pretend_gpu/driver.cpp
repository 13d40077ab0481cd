// The driver, as far as torch asks for it by name, and cuBLAS.

#include "device.hpp"

// ---- the driver: what torch's expandable segments are made of

struct Physical {
  size_t size;
  int device;
};

API CUresult cuGetErrorString(CUresult, const char** text) {
  return *text = "an error of the pretended driver", CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice* device, int index) { return *device = index, CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int* count) { return *count = ours().size(), CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return *value = 1, CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return *flags = 0, *active = has_context[device], CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = reinterpret_cast<CUcontext>(1), CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
  return *context = reinterpret_cast<CUcontext>(has_context[current]), CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
API CUresult cuMemGetAllocationGranularity(size_t* grain, const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
  return *grain = GRAIN, CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  if (getenv("PRETEND_GPU_NO_VMM")) return CUDA_ERROR_NOT_SUPPORTED;
  void* memory = reserve(size, PROT_NONE);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  Lock lock(guard);
  segments[static_cast<char*>(memory)] = {size, current};
  return *address = reinterpret_cast<CUdeviceptr>(memory), CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  Lock lock(guard);
  segments.erase(reinterpret_cast<char*>(address));
  return munmap(reinterpret_cast<void*>(address), size), CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* how,
                         unsigned long long) {
  if (started()) return sticky ? CUDA_ERROR_ASSERT : CUDA_ERROR_OUT_OF_MEMORY;
  if (!take(ours()[how->location.id], size)) return CUDA_ERROR_OUT_OF_MEMORY;
  return *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{size, how->location.id}), CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto* physical = reinterpret_cast<Physical*>(handle);
  give_back(ours()[physical->device], physical->size);
  return delete physical, CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE), CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
  return CUDA_SUCCESS;
}
static CUresult not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* status) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (status) *status = cudaDriverEntryPointSuccess;
  return *function = found ? found : reinterpret_cast<void*>(not_supported), cudaSuccess;
}

// ---- cuBLAS: all but these does nothing, successfully

API int cublasCreate_v2(void** handle) { return *handle = &blocks, started() ? 1 : 0; }
API int cublasLtCreate(void** handle) { return *handle = &blocks, 0; }
API int cublasGetVersion_v2(void*, int* version) { return *version = 130000, 0; }
API size_t cublasLtGetVersion() { return 130000; }
API int cublasGetProperty(int, int* value) { return *value = 13, 0; }
API int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, 0; }
API int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
API const char* cublasGetStatusString(int) { return "a status of the pretended cuBLAS"; }
API const char* cublasGetStatusName(int) { return "PRETENDED"; }
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* best, int* count) {
  return memset(best, 0, 64), *count = 1, 0;
}
API int cublasLtMatmulPreferenceCreate(void** made) { return *made = calloc(1, 64), 0; }
API int cublasLtMatmulDescCreate(void** made) { return *made = calloc(1, 64), 0; }
API int cublasLtMatrixLayoutCreate(void** made) { return *made = calloc(1, 64), 0; }
