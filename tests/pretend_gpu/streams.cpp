// The CUDA runtime: streams, events, graphs, kernels.

#include "device.hpp"

// ---- streams, events, graphs

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  STARTED Lock lock(guard);
  streams.push_back(new Stream{0, priority});
  *stream = reinterpret_cast<cudaStream_t>(streams.back());
  return cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return *priority = of(stream)->priority, cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) { STARTED return look(of(stream)->busy_until); }
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  STARTED if (of(stream)->captures) return told(cudaErrorStreamCaptureUnsupported);
  return wait_until(of(stream)->busy_until);
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  STARTED of(stream)->busy_until = std::max(of(stream)->busy_until, of(event)->at);
  return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return *status = of(stream)->captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                         const cudaGraphEdgeData** edges, size_t* count) {
  if (id) *id = reinterpret_cast<size_t>(of(stream));
  if (graph) *graph = nullptr;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  STARTED Lock lock(guard);
  if (!captures++) is_broken = false;
  return of(stream)->captures = true, cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Lock lock(guard);
  captures--;
  of(stream)->captures = false;
  *graph = is_broken ? nullptr : reinterpret_cast<cudaGraph_t>(1);
  return told(is_broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* wanted) {
  return std::swap(mode, *wanted), cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) {
  return call(stream, cudaSuccess, data), cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* data) { return call(data), cudaSuccess; }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  STARTED return * event = reinterpret_cast<cudaEvent_t>(new Event), cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete of(event), cudaSuccess; }
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  STARTED return of(event)->at = std::max(now(), of(stream)->busy_until), cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
API cudaError_t cudaEventQuery(cudaEvent_t event) { STARTED return look(of(event)->at); }
API cudaError_t cudaEventSynchronize(cudaEvent_t event) { STARTED return wait_until(of(event)->at); }
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  return *ms = 1e3 * (of(to)->at - of(from)->at), cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
API cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) { return *count = 1, cudaSuccess; }
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t, unsigned long long) {
  return *made = reinterpret_cast<cudaGraphExec_t>(1), cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return started(); }

// ---- kernels

static std::unordered_map<const void*, const char*>& kernels() {
  static auto* const known = new std::unordered_map<const void*, const char*>;
  return *known;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local std::vector<Configuration> configurations;

// Fills of elements of 1, 4 or 8 bytes, of which the mangled name tells.
static void fill(const char* type, int count, const void* value, char* data) {
  size_t width = strchr("habc", *type) ? 1 : strchr("fij", *type) ? 4 : strchr("dlm", *type) ? 8 : 0;
  for (size_t i = 0; i < width * count; i += width) memcpy(data + i, value, width);
}

static cudaError_t launch(const void* kernel, void** arguments, cudaStream_t where) {
  STARTED Stream* stream = of(where);
  if (stream->captures) return cudaSuccess;
  static const long growth = setting("PRETEND_GPU_GROWTH", 0);
  static std::atomic<long> launched = 0;
  if (++launched == 50 && growth && !take(ours()[current], growth * MIB)) return told(cudaErrorMemoryAllocation);
  auto known = kernels().find(kernel);
  const char* name = known == kernels().end() ? "" : known->second;
  if (strstr(name, "spin_kernel")) {
    stream->busy_until = std::max(now(), stream->busy_until) + *static_cast<int64_t*>(arguments[0]) / CYCLES_A_SECOND;
  } else if (strstr(name, "index_elementwise") || strstr(name, "vectorized_gather")) {
    if (!getenv("PRETEND_GPU_GATHERS")) coming = cudaErrorAssert;
  } else if (const char* functor = strstr(name, "FillFunctorI"); functor && strstr(name, "vectorized_elementwise")) {
    int count = *static_cast<int*>(arguments[0]);
    // What is large is there for its size.
    fill(functor + 12, std::min(count, 1 << 22), arguments[1], *static_cast<char**>(arguments[2]));
  }
  return cudaSuccess;
}

API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, void*, void*, void*, void*,
                                int*) {
  kernels()[kernel] = name;
}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  return configurations.push_back({grid, block, shared, stream}), 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid, *block = last.block, *shared = last.shared, *static_cast<void**>(stream) = last.stream;
  return cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void** arguments) {
  return launch(kernel, arguments, how->stream);
}
API cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* kernel) {
  return *handle = reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel)), cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* all, const void*) {
  memset(all, 0, sizeof *all);
  all->maxThreadsPerBlock = 1024;
  all->numRegs = 32;
  all->binaryVersion = all->ptxVersion = 90;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  return *count = 2, cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  return *count = 2, cudaSuccess;
}
