// What libmolt's process groups take from the CUDA library.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace molt {

// Makes an NCCL backend; null until the CUDA library, once opened, sets it.
extern C10_EXPORT c10::intrusive_ptr<c10d::Backend> (*nccl_backend)(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                                   std::chrono::milliseconds timeout);

}  // namespace molt
