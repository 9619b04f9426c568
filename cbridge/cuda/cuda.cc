// libmolt_cuda: its load brings libtorch's CUDA kernels, and it makes NCCL backends. Everything else about CUDA goes through ATen.
#define USE_C10D_NCCL 1
// The half types' own headers need one more wheel (nvidia-cuda-cccl), and no more than their names is used here.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
struct __half;
struct __nv_bfloat16;
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include "collectives.h"

namespace {

// Its waits hold the caller until the operation is over, so that a dead or late rank is an error; else c10d would end the process.
struct Nccl : c10d::ProcessGroupNCCL {
  Nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options)
      : ProcessGroupNCCL(std::move(store), rank, size, std::move(options)) {
    blockingWait_ = true;
    asyncErrorHandling_ = c10d::NoHandling;
  }
};

c10::intrusive_ptr<c10d::Backend> make(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<Nccl>(std::move(store), rank, size, std::move(options));
}

}  // namespace

// Gives libmolt what it needs, and the hash of the header that this library was built with.
extern "C" __attribute__((visibility("default"))) const char* molt_cuda(molt::NcclBackend** backend) {
  *backend = make;
  return MOLT_ABI;
}
