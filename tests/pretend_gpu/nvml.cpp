// NVML, as far as torch and nvidia-ml-py ask for it.

#include "device.hpp"

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

struct Memory {
  unsigned long long total, free, used;
};
struct Process {  // as of version 3; the first had only two members
  unsigned pid;
  unsigned long long bytes;
  unsigned instance, slice;
};
struct FirstProcess {
  unsigned pid;
  unsigned long long bytes;
};

static int index_of(void* handle) { return reinterpret_cast<size_t>(handle) - 1; }
static int handle_of(int device, void** handle) { return *handle = reinterpret_cast<void*>(device + 1ul), OK; }

API int nvmlInit_v2() { return OK; }
API int nvmlInitWithFlags(unsigned) { return OK; }
API int nvmlShutdown() { return OK; }
API const char* nvmlErrorString(int) { return "an error of the pretended NVML"; }
API int nvmlDeviceGetCount_v2(unsigned* count) { return *count = devices(), OK; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  return static_cast<int>(index) < devices() ? handle_of(index, handle) : INVALID_ARGUMENT;
}
API int nvmlDeviceGetHandleByUUID(const char* text, void** handle) {
  for (int device = 0; device < devices(); device++)
    if (uuid(device) == text) return handle_of(device, handle);
  return NOT_FOUND;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {
  return handle_of(strtol(strchr(bus, ':') + 1, nullptr, 16) - 1, handle);
}
API int nvmlDeviceGetName(void*, char* text, unsigned size) { return snprintf(text, size, "Pretend H100"), OK; }
API int nvmlDeviceGetUUID(void* handle, char* text, unsigned size) {
  return snprintf(text, size, "%s", uuid(index_of(handle)).c_str()), OK;
}
API int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  if (is_lost(index_of(handle))) return GPU_IS_LOST;
  Locked locked;
  size_t taken = used(index_of(handle));
  return *memory = {total(), total() - taken, taken}, OK;
}
API int nvmlDeviceGetComputeMode(void*, int* mode) { return *mode = 0, OK; }
API int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) { return rates[0] = 30, rates[1] = 5, OK; }
API int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* found) {
  Locked locked;
  used(index_of(handle));
  unsigned seen = 0;
  for (Share& share : book()->shares) {
    if (!share.pid || share.device != index_of(handle) || getenv("PRETEND_GPU_BLIND")) continue;
    if (found && seen < *count)
      found[seen] = {static_cast<unsigned>(share.pid), static_cast<unsigned long long>(share.bytes), ~0u, ~0u};
    seen++;
  }
  bool fits = seen <= *count;
  return *count = seen, fits ? OK : INSUFFICIENT_SIZE;
}
API int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, FirstProcess* found) {
  std::vector<Process> all(*count);
  int status = nvmlDeviceGetComputeRunningProcesses_v3(handle, count, all.data());
  for (unsigned i = 0; !status && i < *count; i++) found[i] = {all[i].pid, all[i].bytes};
  return status;
}
API int nvmlSystemGetDriverVersion(char* text, unsigned size) { return snprintf(text, size, "580.00"), OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, OK; }
API int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
API int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* later) { return *now = *later = 0, OK; }
// Looked up by torch together with what it needs.
API int nvmlDeviceGetNvLinkRemoteDeviceType() { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV() { return OK; }
