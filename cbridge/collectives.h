// What libmolt's process groups take from the CUDA library.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace molt {

// Makes an NCCL backend. The CUDA library sets it when it is opened; until then it is null.
using NcclBackend = c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                      std::chrono::milliseconds timeout);
extern C10_EXPORT NcclBackend* nccl_backend;

}  // namespace molt
