// The CUDA runtime: devices, errors, memory.

#include "device.hpp"

// ---- the runtime: devices

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = is_forked() ? 0 : ours().size();
  return is_forked() ? told(cudaErrorInitializationError) : *count ? cudaSuccess : told(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return is_forked() ? told(cudaErrorInitializationError) : cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= static_cast<int>(ours().size())) return told(cudaErrorInvalidDevice);
  current = device;
  return sticky ? cudaSuccess : started();
}
API cudaError_t cudaDeviceSynchronize() {
  UNSAFE double last = default_stream.busy_until;
  {
    Lock lock(guard);
    for (Stream* stream : streams) last = std::max(last, stream->busy_until);
  }
  return wait_until(last);
}
API cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* all, int device) {
  memset(all, 0, sizeof *all);
  strcpy(all->name, "Pretend H100");
  all->totalGlobalMem = total();
  all->major = 9;
  all->multiProcessorCount = 132;
  all->warpSize = 32;
  all->maxThreadsPerBlock = all->maxThreadsDim[0] = all->maxThreadsDim[1] = 1024;
  all->maxThreadsDim[2] = 64;
  all->maxGridSize[0] = 2147483647;
  all->maxGridSize[1] = all->maxGridSize[2] = 65535;
  all->maxThreadsPerMultiProcessor = 2048;
  all->sharedMemPerBlock = 49152;
  all->sharedMemPerBlockOptin = 232448;
  all->sharedMemPerMultiprocessor = 233472;
  all->regsPerBlock = all->regsPerMultiprocessor = 65536;
  all->l2CacheSize = 50 << 20;
  all->textureAlignment = 512;
  all->unifiedAddressing = all->concurrentKernels = 1;
  all->pciBusID = 1 + ours()[device];
  std::string text = uuid(ours()[device]).substr(4);
  text.erase(std::remove(text.begin(), text.end(), '-'), text.end());
  for (int i = 0; i < 16; i++) all->uuid.bytes[i] = strtol(text.substr(2 * i, 2).c_str(), nullptr, 16);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  cudaDeviceProp all;
  cudaGetDeviceProperties(&all, device);
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: *value = all.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = all.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = all.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = all.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = all.sharedMemPerBlockOptin; break;
    case cudaDevAttrWarpSize: *value = all.warpSize; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = all.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = all.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = all.regsPerBlock; break;
    default: *value = 1;
  }
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return snprintf(text, size, "0000:%02x:00.0", 1 + ours()[device]), cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

// ---- errors

API cudaError_t cudaPeekAtLastError() { return sticky ? sticky : last_error; }
API cudaError_t cudaGetLastError() {
  cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}
API const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorAssert: return "cudaErrorAssert";
    case cudaErrorInitializationError: return "cudaErrorInitializationError";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    default: return "cudaErrorUnknown";
  }
}
API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorInitializationError: return "initialization error";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return cudaGetErrorName(error);
  }
}

// ---- memory

API cudaError_t cudaMalloc(void** memory, size_t size) {
  UNSAFE Lock lock(guard);
  size = (size + GRAIN - 1) / GRAIN * GRAIN;
  *memory = nullptr;
  if (!take(ours()[current], size)) return told(cudaErrorMemoryAllocation);
  *memory = reserve(size, PROT_READ | PROT_WRITE);
  blocks[static_cast<char*>(*memory)] = {size, current};
  return cudaSuccess;
}
API cudaError_t cudaFree(void* memory) {
  UNSAFE if (!memory) return cudaSuccess;
  Lock lock(guard);
  auto found = blocks.find(static_cast<char*>(memory));
  if (found == blocks.end()) return told(cudaErrorInvalidValue);
  munmap(memory, found->second.size);
  if (found->second.device >= 0) give_back(ours()[found->second.device], found->second.size);
  blocks.erase(found);
  return cudaSuccess;
}
API cudaError_t cudaMallocAsync(void** memory, size_t size, cudaStream_t) { return cudaMalloc(memory, size); }
API cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }
API cudaError_t cudaHostAlloc(void** memory, size_t size, unsigned) {
  UNSAFE Lock lock(guard);
  *memory = reserve(size, PROT_READ | PROT_WRITE);
  if (!*memory) return told(cudaErrorMemoryAllocation);
  blocks[static_cast<char*>(*memory)] = {size, -1};
  return cudaSuccess;
}
API cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
API cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
API cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  STARTED Locked locked;
  *all = total();
  *free = total() - used(ours()[current]);
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* all, const void* memory) {
  Lock lock(guard);
  memset(all, 0, sizeof *all);
  all->device = current;
  const char* byte = static_cast<const char*>(memory);
  for (auto* known : {&blocks, &segments}) {
    auto found = known->upper_bound(const_cast<char*>(byte));
    if (found == known->begin() || byte >= (--found)->first + found->second.size) continue;
    bool is_host = found->second.device < 0;
    all->type = is_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    all->devicePointer = const_cast<void*>(memory);
    all->hostPointer = is_host ? all->devicePointer : nullptr;
  }
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  STARTED if (of(stream)->captures) return cudaSuccess;
  cudaError_t error = kind == cudaMemcpyDeviceToHost ? wait_until(of(stream)->busy_until) : cudaSuccess;
  if (!error) memmove(to, from, size);
  return error;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                  size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  for (size_t row = 0; row < height && !error; row++)
    error = cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                            width, kind, stream);
  return error;
}
API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
API cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char somewhere[1 << 16];
  return *address = somewhere, cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t stream) {
  STARTED if (of(stream)->captures) return cudaSuccess;
  char *begin = static_cast<char*>(memory), *end = begin + size;
  char* first_page = reinterpret_cast<char*>((reinterpret_cast<size_t>(begin) + 4095) & ~4095ul);
  char* last_page = reinterpret_cast<char*>(reinterpret_cast<size_t>(end) & ~4095ul);
  if (value || first_page >= last_page) return memset(memory, value, size), cudaSuccess;
  // Pages that nobody has written to take no memory of the host's, and are zero.
  memset(begin, 0, first_page - begin);
  madvise(first_page, last_page - first_page, MADV_DONTNEED);
  memset(last_page, 0, end - last_page);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void* memory, int value, size_t size) {
  return cudaMemsetAsync(memory, value, size, nullptr);
}
