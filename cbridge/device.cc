// Devices, streams and device memory through c10's interfaces for any device: CUDA itself comes in libmolt_cuda, opened at run time.
#include "bridge.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <dlfcn.h>
#include "collectives.h"

namespace molt {

static thread_local std::vector<c10::Stream> streams;  // of the scopes that are open on this thread

static const c10::impl::DeviceGuardImplInterface& cuda() { return *c10::impl::getDeviceGuardImpl(c10::kCUDA); }

static c10::Stream stream_of(const Scope& s, c10::Device d) {
  return s.stream && s.stream->device() == d ? *s.stream : cuda().getDefaultStream(d);
}

static void wait(c10::Stream later, c10::Stream earlier) {
  c10::Event done(c10::kCUDA);
  done.record(earlier);
  done.block(later);
}

std::optional<c10::Stream> thread_stream() { return streams.empty() ? std::nullopt : std::optional(streams.back()); }

void join(const Scope& s, const Scope& parent) {
  if (!s.stream || s.stream == parent.stream) return;
  streams.pop_back();
  wait(stream_of(parent, s.stream->device()), *s.stream);
}

// The allocator gives freed memory back to the stream that it was made on, once the others that t was used on are done with it.
static void use(at::Tensor t, c10::Stream stream) {
  if (t.is_cuda()) t.record_stream(stream);
}

void hand_over(const at::Tensor& t, const Scope& from, const Scope& to) {
  if (from.stream && from.stream != to.stream && t.is_cuda()) use(t, stream_of(to, t.device()));
}

void use_arguments(const std::vector<c10::IValue>& arguments, const Scope& s) {
  if (!s.stream) return;
  for (const c10::IValue& v : arguments) {
    if (v.isTensor()) use(v.toTensor(), *s.stream);
    if (v.isList())
      for (const c10::IValue& e : v.toListRef())
        if (e.isTensor()) use(e.toTensor(), *s.stream);
  }
}

}  // namespace molt

using namespace molt;

int32_t mt_cuda_open(const char* path, char** err) {
  return attempt(err, [&] {
    void* lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) throw std::runtime_error(dlerror());
    auto open = reinterpret_cast<const char* (*)(NcclBackend**)>(dlsym(lib, "molt_cuda"));
    NcclBackend* backend = nullptr;
    if (!open || strcmp(open(&backend), MOLT_ABI) != 0) throw std::runtime_error("it was built for another version of torch/molt.h");
    nccl_backend = backend;
  });
}

int32_t mt_cuda_count(char** err) {
  return guard(err, -1, [&]() -> int32_t {
    // libtorch looks for CUDA once, at the first backward, seed, convolution or such, and autograd then starts its devices' threads.
    if (!at::detail::getCUDAHooks().isBuilt())
      throw std::runtime_error("libtorch has settled for the CPU, as it does at the first backward or seed: ask for a device before "
                               "that, for example with torch.DeviceCount when the program starts");
    if (!dlopen("libcuda.so.1", RTLD_LAZY)) throw std::runtime_error("no NVIDIA driver: libcuda.so.1 was not found");
    try {
      at::globalContext().lazyInitDevice(c10::kCUDA);
    } catch (const c10::Error& e) {
      throw std::runtime_error(std::string("no CUDA device: ") + e.what_without_backtrace());
    }
    return cuda().deviceCount();
  });
}

int32_t mt_scope_on(mt_scope h, int32_t device, int32_t own_stream, char** err) {
  return attempt(err, [&] {
    Scope& s = usable(h);
    s.device = device < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, c10::DeviceIndex(device));
    if (!own_stream || device < 0) return;
    if (s.stream && s.stream->device() != *s.device)
      throw std::runtime_error("inside a scope with a stream on " + s.stream->device().str() + ": open one on " + s.device->str() +
                               " outside of it");
    c10::Stream stream = cuda().getStreamFromGlobalPool(*s.device);
    if (s.stream == stream) return;  // the pool has 32
    wait(stream, stream_of(s, *s.device));
    streams.push_back(stream);
    s.stream = stream;
  });
}

int32_t mt_synchronize(int32_t device, char** err) {
  return attempt(err, [&] { cuda().synchronizeDevice(c10::DeviceIndex(device)); });
}

int32_t mt_device_memory(int32_t device, mt_memory_info* out, char** err) {
  return attempt(err, [&] {
    auto stats = at::getDeviceAllocator(c10::kCUDA)->getDeviceStats(c10::DeviceIndex(device));
    const auto &used = stats.allocated_bytes[0], &reserved = stats.reserved_bytes[0];  // [0]: over all pools
    *out = {used.current, reserved.current - used.current, reserved.peak};
  });
}
