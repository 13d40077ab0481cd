// A GPU that is not there, for torch's own CUDA build: it has memory, streams and errors, and does not compute.
//
// Preloaded, this takes the place of the CUDA runtime, the driver, cuBLAS and NVML. The device's memory is host memory
// that is only reserved, and counted for each process in a file that all share, as a real one counts for all programs.
// Kernels do nothing, but for those that fill, wait, or gather by index, which fails as with an index out of range.
//
// PRETEND_GPU           the file; PRETEND_GPU.lock is beside it, and once PRETEND_GPU.lost-1 is, device 1 is lost
// PRETEND_GPU_COUNT     devices, 1
// PRETEND_GPU_MIB       memory of each, 81559
// PRETEND_GPU_CONTEXT   MiB that a process takes with its context, 450
// PRETEND_GPU_GROWTH    MiB that it takes with its 50th kernel, as libraries do once they are used, 0
// PRETEND_GPU_GATHERS   if set, gathering by index does nothing instead of failing
// PRETEND_GPU_BLIND     if set, NVML sees no process, as in a container
// PRETEND_GPU_NO_VMM    if set, there is no virtual memory management, as on some virtual GPUs

#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

inline constexpr size_t MIB = 1ul << 20;
inline constexpr size_t GRAIN = 2 * MIB;
inline constexpr size_t OF_THE_DRIVER = 600 * MIB;
inline constexpr int MOST_DEVICES = 8;
inline constexpr double CYCLES_A_SECOND = 1.7e9;

inline long setting(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text ? atol(text) : otherwise;
}

inline size_t total() {
  static const size_t bytes = setting("PRETEND_GPU_MIB", 81559) * MIB;
  return bytes;
}

inline int devices() {
  static const int count = setting("PRETEND_GPU_COUNT", 1);
  return count;
}

inline std::string uuid(int device) {
  char text[64];
  snprintf(text, sizeof text, "GPU-%08x-1111-2222-3333-444455556666", 0xabc00000 + device);
  return text;
}

// ---- what all processes have taken

struct Share {
  int pid;
  int device;
  std::atomic<long> bytes;
};

struct Book {
  Share shares[512];
};

inline std::string book_path() {
  const char* path = getenv("PRETEND_GPU");
  return path ? path : "/dev/shm/pretend-gpu";
}

inline bool is_lost(int device) { return !access((book_path() + ".lost-" + std::to_string(device)).c_str(), F_OK); }

inline Book* book() {
  static Book* const mapped = [] {
    int file = open(book_path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (ftruncate(file, sizeof(Book))) abort();
    void* memory = mmap(nullptr, sizeof(Book), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return static_cast<Book*>(memory);
  }();
  return mapped;
}

class Locked {
 public:
  Locked() : file_(open((book_path() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) { flock(file_, LOCK_EX); }
  ~Locked() { close(file_); }

 private:
  int file_;
};

inline bool has_ended(int pid) {
  if (kill(pid, 0) && errno != EPERM) return true;
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return true;
  text[size] = 0;
  const char* name_end = strrchr(text, ')');
  return name_end && (name_end[2] == 'Z' || name_end[2] == 'X');
}

// These two are for who holds the lock.
inline size_t used(int device) {
  size_t sum = OF_THE_DRIVER;
  for (Share& share : book()->shares) {
    if (share.pid && has_ended(share.pid)) share.pid = 0;
    if (share.pid && share.device == device) sum += share.bytes;
  }
  return std::min(sum, total());
}

inline Share* share_of(int pid, int device, bool make) {
  Share* unused = nullptr;
  for (Share& share : book()->shares) {
    if (share.pid == pid && share.device == device) return &share;
    if (!share.pid && !unused) unused = &share;
  }
  if (!make || !unused) return nullptr;
  unused->bytes = 0, unused->device = device, unused->pid = pid;
  return unused;
}

inline bool take(int device, size_t bytes) {
  Locked locked;
  if (used(device) + bytes > total()) return false;
  share_of(getpid(), device, true)->bytes += bytes;
  return true;
}

inline void give_back(int device, size_t bytes) {
  if (Share* share = share_of(getpid(), device, false)) share->bytes -= bytes;
}

// ---- this process

struct Stream {
  double busy_until = 0;
  int priority = 0;
  bool captures = false;
};

struct Event {
  double at = 0;
};

struct Block {
  size_t size;
  int device;  // -1: pinned
};

inline std::recursive_mutex guard;
inline int owner = 0;  // who started CUDA: a fork of that process cannot use it
inline bool has_context[MOST_DEVICES];
inline thread_local int current = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
inline cudaError_t coming = cudaSuccess;  // of a kernel, until someone waits for it
inline cudaError_t sticky = cudaSuccess;
inline Stream default_stream;
inline std::vector<Stream*> streams;
inline std::map<char*, Block> blocks, segments;

using Lock = std::lock_guard<std::recursive_mutex>;

inline cudaError_t told(cudaError_t error) {
  if (error) last_error = error;
  return error;
}

inline std::vector<int> visible() {
  std::vector<int> found;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (int device = 0; device < devices(); device++) found.push_back(device);
    return found;
  }
  std::string rest = text;
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string entry = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    int match = -1;
    for (int device = 0; device < devices(); device++)
      if (entry == std::to_string(device) || (entry.rfind("GPU-", 0) == 0 && uuid(device).rfind(entry, 0) == 0))
        match = device;
    if (match < 0) break;
    found.push_back(match);
  }
  return found;
}

// As with CUDA, what the environment says when it is first used holds.
inline const std::vector<int>& ours() {
  static std::vector<int> found;
  if (!owner) found = visible();
  return found;
}

inline bool is_forked() { return owner && owner != getpid(); }

inline cudaError_t started() {
  Lock lock(guard);
  if (sticky) return told(sticky);
  if (is_forked()) return told(cudaErrorInitializationError);
  if (ours().empty()) return told(cudaErrorNoDevice);
  if (is_lost(ours()[current])) return told(sticky = cudaErrorUnknown);
  owner = getpid();
  if (!has_context[current]) {
    if (!take(ours()[current], setting("PRETEND_GPU_CONTEXT", 450) * MIB)) return told(cudaErrorMemoryAllocation);
    has_context[current] = true;
  }
  return cudaSuccess;
}

#define STARTED \
  if (cudaError_t error = started()) return error;

inline int captures = 0;         // of graphs, under way
inline bool is_broken = false;  // something was called meanwhile that must not be
inline thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

// What no thread may do while any of them captures a graph.
inline cudaError_t unsafe() {
  Lock lock(guard);
  if (!captures || mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  is_broken = true;
  return told(cudaErrorStreamCaptureUnsupported);
}

#define UNSAFE \
  STARTED if (cudaError_t error = unsafe()) return error;

inline double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

inline cudaError_t wait_until(double moment) {
  for (double time; (time = now()) < moment;) usleep(std::min(1000.0, (moment - time) * 1e6 + 1));
  if (coming) sticky = coming;
  return told(sticky);
}

inline cudaError_t look(double moment) { return now() < moment ? cudaErrorNotReady : wait_until(0); }

inline Stream* of(cudaStream_t stream) {
  bool is_default = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_default ? &default_stream : reinterpret_cast<Stream*>(stream);
}

inline Event* of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

inline void* reserve(size_t bytes, int access) {
  void* memory = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}
