// The whole C interface of libmolt. Handles are numbers (slot and generation), so a stale one is an error and never a crash.
// Every function that can fail sets *err to a message that the caller frees. No Go pointer is kept past a call.
#ifndef MOLT_H
#define MOLT_H
#include <stdint.h>

typedef uint64_t mt_tensor; // 0: none
typedef uint64_t mt_scope;  // 0: none
typedef uint64_t mt_group;  // a process group and its store, or a store alone; times are in milliseconds
// Lists are (offset, length) into the int64 pool that is passed beside the arguments: v = offset, n = length.
typedef struct { int32_t tag, n; int64_t v; } mt_arg; // MT_DOUBLE: v holds the bits; MT_OTHER: what Go has instead, a string
enum { MT_NONE, MT_TENSOR, MT_INT, MT_DOUBLE, MT_BOOL, MT_STRING, MT_INTS, MT_DOUBLES, MT_BOOLS, MT_STRINGS, MT_TENSORS, MT_OTHER };
// What mt_collective does. Its arg is a reduction in c10d's numbering, or the rank at the other end.
enum { MT_ALL_REDUCE, MT_ALL_GATHER, MT_REDUCE_SCATTER, MT_BROADCAST, MT_ALL_TO_ALL, MT_SEND, MT_RECEIVE };
// What mt_info reports: dtype and device in ATen's numbering, index among the devices of its kind.
typedef struct { int64_t shape[64]; int32_t ndim, dtype, device, index, requires_grad, contiguous; } mt_tensor_info;
// Bytes: in live tensors, kept for the next ones, and the highest sum of the two so far (on the CPU: blocks of 256 KB and more).
typedef struct { int64_t used, cached, peak; } mt_memory_info;

// X(result, name, parameters, arguments): one list declares the functions here and builds the shim that opens the library.
#define MT_FUNCTIONS(X) \
  X(const char*, mt_abi, (void), ()) \
  X(mt_scope, mt_scope_open, (mt_scope parent, int32_t grad, char** err), (parent, grad, err)) \
  X(int32_t, mt_scope_close, (mt_scope s, char** err), (s, err)) \
  X(int32_t, mt_scope_move, (mt_scope from, mt_scope to, mt_tensor t, char** err), (from, to, t, err)) \
  X(int32_t, mt_op, (const char* name, const char* overload, char** err), (name, overload, err)) \
  X(int32_t, mt_call, (mt_scope s, int32_t op, const mt_arg* args, int32_t n, const int64_t* pool, mt_tensor* out, int32_t nout, char** err), \
    (s, op, args, n, pool, out, nout, err)) \
  X(int32_t, mt_more, (mt_scope s, mt_tensor* out, int32_t n, char** err), (s, out, n, err)) \
  X(int32_t, mt_seed, (uint64_t seed, char** err), (seed, err)) \
  X(mt_tensor, mt_from, (mt_scope s, const void* data, int32_t dtype, const int64_t* shape, int32_t ndim, char** err), \
    (s, data, dtype, shape, ndim, err)) \
  X(mt_tensor, mt_map, (mt_scope s, int32_t file, int64_t offset, int64_t bytes, int32_t dtype, const int64_t* shape, int32_t ndim, \
    char** err), (s, file, offset, bytes, dtype, shape, ndim, err)) \
  X(int32_t, mt_read, (mt_tensor t, void* dst, int64_t numel, int32_t dtype, char** err), (t, dst, numel, dtype, err)) \
  X(int32_t, mt_write, (mt_tensor t, const void* src, int64_t numel, int32_t dtype, char** err), (t, src, numel, dtype, err)) \
  X(int32_t, mt_info, (mt_tensor t, mt_tensor_info* out, char** err), (t, out, err)) \
  X(int32_t, mt_require_grad, (mt_tensor t, int32_t on, char** err), (t, on, err)) \
  X(int32_t, mt_label, (mt_scope s, const mt_tensor* results, int32_t n, const char* where, char** err), (s, results, n, where, err)) \
  X(int32_t, mt_backward, (mt_scope s, const mt_tensor* roots, const mt_tensor* grads, int32_t n, char** err), (s, roots, grads, n, err)) \
  X(int32_t, mt_gradients, (mt_scope s, const mt_tensor* roots, const mt_tensor* grads, int32_t n, const mt_tensor* inputs, int32_t m, \
    mt_tensor* out, char** err), (s, roots, grads, n, inputs, m, out, err)) \
  X(mt_tensor, mt_grad, (mt_scope s, mt_tensor t, char** err), (s, t, err)) \
  X(int32_t, mt_clear_grad, (mt_tensor t, char** err), (t, err)) \
  X(int64_t, mt_live, (void), ()) \
  X(mt_memory_info, mt_memory, (void), ()) \
  X(int32_t, mt_threads, (int32_t n), (n)) \
  X(uint64_t, mt_thread, (void), ()) \
  X(mt_tensor, mt_from_aten, (mt_scope s, const void* t, char** err), (s, t, err)) \
  X(void*, mt_to_aten, (mt_tensor t, char** err), (t, err)) \
  X(mt_group, mt_store_open, (const char* host, int32_t port, int32_t serve, int64_t timeout, char** err), (host, port, serve, timeout, err)) \
  X(mt_group, mt_group_open, (mt_group parent, const char* backend, const char* name, const char* local, int32_t rank, int32_t size, \
    int64_t wait, int64_t timeout, char** err), (parent, backend, name, local, rank, size, wait, timeout, err)) \
  X(int32_t, mt_group_close, (mt_group g, char** err), (g, err)) \
  X(int32_t, mt_group_barrier, (mt_group g, char** err), (g, err)) \
  X(mt_tensor, mt_collective, (mt_scope s, mt_group g, int32_t kind, mt_tensor t, int32_t arg, char** err), (s, g, kind, t, arg, err)) \
  X(int32_t, mt_store_set, (mt_group g, const char* key, const void* data, int64_t n, char** err), (g, key, data, n, err)) \
  X(void*, mt_store_get, (mt_group g, const char* key, int64_t* n, char** err), (g, key, n, err)) \
  X(int32_t, mt_cuda_open, (const char* path, char** err), (path, err)) \
  X(int32_t, mt_cuda_count, (char** err), (err)) \
  X(int32_t, mt_scope_on, (mt_scope s, int32_t device, int32_t own_stream, char** err), (s, device, own_stream, err)) \
  X(int32_t, mt_synchronize, (int32_t device, char** err), (device, err)) \
  X(int32_t, mt_device_memory, (int32_t device, mt_memory_info* out, char** err), (device, out, err))

#ifdef __cplusplus
#define MT_API extern "C" __attribute__((visibility("default")))
#else
#define MT_API
#endif
#define X(R, N, P, A) MT_API R N P;
MT_FUNCTIONS(X)
#undef X
#endif
