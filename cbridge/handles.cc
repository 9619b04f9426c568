// Handles, scopes, and what a Go program reads and writes of a tensor.
#include "bridge.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace molt {

static Slab<at::Tensor> tensors;
static Slab<Scope> scopes;

at::Tensor tensor(mt_tensor h) { return tensors.copy(h, "tensor"); }

Scope& usable(mt_scope h) {
  Scope& s = scopes.get(h, "scope");
  if (s.thread != mt_thread()) throw std::runtime_error("scope used on another thread than that of its torch.Do: open one there");
  if (s.children) throw std::runtime_error("scope used while a child of it is open: use the child's scope inside the block");
  return s;
}

mt_tensor put(Scope& s, at::Tensor t) {
  if (!t.defined()) return 0;
  s.own.push_back(tensors.put(std::move(t)));
  return s.own.back();
}

static at::Tensor blob(const void* data, int32_t dtype, at::IntArrayRef shape) {
  return at::from_blob(const_cast<void*>(data), shape, at::TensorOptions().dtype(at::ScalarType(dtype)));
}

static at::Tensor view_as(const at::Tensor& t, const void* data, int64_t numel, int32_t dtype) {
  if (numel != t.numel())
    throw std::runtime_error("the slice holds " + std::to_string(numel) + " numbers, the tensor " + std::to_string(t.numel()));
  return blob(data, dtype, t.sizes());
}

}  // namespace molt

using namespace molt;

const char* mt_abi() { return MOLT_ABI; }
int64_t mt_live() { return tensors.live(); }
uint64_t mt_thread() { return uint64_t(pthread_self()); }
int32_t mt_threads(int32_t n) {
  // This library's own copy of the per-thread start-up: left to the first parallel_for, it would undo the setting below.
  at::internal::lazy_init_num_threads();
  int32_t before = at::get_num_threads();
  if (n > 0) at::set_num_threads(n);
  return before;
}

mt_scope mt_scope_open(mt_scope parent, int32_t grad, char** err) {
  return guard(err, mt_scope(0), [&] {
    Scope s;
    s.grad = grad > 0;
    s.thread = mt_thread();
    s.parent = parent;
    s.stream = thread_stream();  // of a scope around this one, whose child or whose inner Do it is
    Scope* outer = parent ? &usable(parent) : nullptr;
    if (outer) {
      if (grad < 0) s.grad = outer->grad;
      s.device = outer->device, s.stream = outer->stream;
    }
    mt_scope h = scopes.put(std::move(s));
    if (outer) outer->children++;
    return h;
  });
}

int32_t mt_scope_close(mt_scope h, char** err) {
  return attempt(err, [&] {
    Scope& s = usable(h);
    tensors.drop(s.own);
    Scope closed = std::move(s);
    scopes.drop({h});
    if (!closed.parent) return;
    Scope& parent = scopes.get(closed.parent, "scope");
    parent.children--;
    join(closed, parent);
  });
}

// A tensor that another scope owns stays where it is: a block may hand back what it was given.
int32_t mt_scope_move(mt_scope from, mt_scope to, mt_tensor t, char** err) {
  return attempt(err, [&] {
    at::Tensor moved = tensor(t);
    Scope& source = usable(from);
    auto& own = source.own;
    Scope& target = scopes.get(to, "scope");
    if (target.thread != mt_thread()) throw std::runtime_error("a tensor cannot move to the scope of another torch.Do");
    for (size_t i = own.size(); i-- > 0;)
      if (own[i] == t) {
        own.erase(own.begin() + i);
        target.own.push_back(t);
        hand_over(moved, source, target);
        break;
      }
  });
}

mt_tensor mt_from(mt_scope s, const void* data, int32_t dtype, const int64_t* shape, int32_t ndim, char** err) {
  return guard(err, mt_tensor(0), [&] {
    Scope& scope = usable(s);
    Guards guards(scope);
    at::Tensor t = blob(data, dtype, {shape, size_t(ndim)});
    return put(scope, scope.device ? t.to(at::TensorOptions(*scope.device), /*non_blocking=*/false, /*copy=*/true) : t.clone());
  });
}

mt_tensor mt_map(mt_scope s, int32_t file, int64_t offset, int64_t bytes, int32_t dtype, const int64_t* shape, int32_t ndim, char** err) {
  return guard(err, mt_tensor(0), [&] {
    Scope& scope = usable(s);
    const int64_t before = offset % sysconf(_SC_PAGESIZE), size = before + bytes;
    void* p = mmap(nullptr, size_t(size), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, offset - before);
    if (p == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + strerror(errno));
    auto unmap = [p, size](void*) { munmap(p, size_t(size)); };
    return put(scope, at::from_blob(static_cast<char*>(p) + before, {shape, size_t(ndim)}, unmap,
                                    at::TensorOptions().dtype(at::ScalarType(dtype))));
  });
}

int32_t mt_read(mt_tensor h, void* dst, int64_t numel, int32_t dtype, char** err) {
  return attempt(err, [&] {
    c10::AutoGradMode no_grad(false);
    c10::OptionalStreamGuard stream(thread_stream());
    at::Tensor t = tensor(h);
    at::Tensor to = view_as(t, dst, numel, dtype);
    if (t.is_complex() && !to.is_complex()) throw std::runtime_error("complex numbers are read from their aten::view_as_real");
    to.copy_(t);
  });
}

int32_t mt_write(mt_tensor h, const void* src, int64_t numel, int32_t dtype, char** err) {
  return attempt(err, [&] {
    c10::AutoGradMode no_grad(false);
    c10::OptionalStreamGuard stream(thread_stream());
    at::Tensor t = tensor(h);
    t.copy_(view_as(t, src, numel, dtype));
  });
}

int32_t mt_info(mt_tensor h, mt_tensor_info* out, char** err) {
  return attempt(err, [&] {
    at::Tensor t = tensor(h);
    if (t.dim() > 64) throw std::runtime_error("tensor of more than 64 dimensions");
    *out = {{}, int32_t(t.dim()), int32_t(t.scalar_type()), int32_t(t.device().type()), std::max<int32_t>(0, t.device().index()),
            t.requires_grad(), t.layout() == at::kStrided && t.is_contiguous()};
    for (int64_t i = 0; i < t.dim(); i++) out->shape[i] = t.size(i);
  });
}

// t is an at::Tensor* that stays the caller's; the result of mt_to_aten is one that the caller deletes.
mt_tensor mt_from_aten(mt_scope s, const void* t, char** err) {
  return guard(err, mt_tensor(0), [&] { return put(usable(s), t ? *static_cast<const at::Tensor*>(t) : at::Tensor()); });
}
void* mt_to_aten(mt_tensor h, char** err) {
  return guard(err, static_cast<void*>(nullptr), [&] { return new at::Tensor(tensor(h)); });
}
