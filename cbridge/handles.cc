// Handles, scopes, and what a Go program reads and writes of a tensor.
#include "bridge.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

namespace molt {

static Slab<at::Tensor> tensors;
static Slab<Scope> scopes;

at::Tensor& tensor(mt_tensor h) { return tensors.get(h, "tensor"); }

Scope& usable(mt_scope h) {
  Scope& s = scopes.get(h, "scope");
  if (s.thread != mt_thread()) throw std::runtime_error("scope used on another thread than that of its torch.Do: open one there");
  if (s.children) throw std::runtime_error("scope used while a child of it is open: use the child's scope inside the block");
  return s;
}

mt_tensor put(Scope& s, at::Tensor t) {
  mt_tensor h = tensors.put(std::move(t));
  s.own.push_back(h);
  return h;
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
using torch::autograd::variable_list;

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
    s.grad = grad < 0 ? scopes.get(parent, "scope").grad : grad != 0;
    s.thread = mt_thread();
    s.parent = parent;
    if (parent) {
      Scope& p = usable(parent);
      p.children++;
      s.device = p.device, s.stream = p.stream;
    }
    return scopes.put(std::move(s));
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
    at::Tensor& moved = tensor(t);
    Scope& source = usable(from);
    auto& own = source.own;
    Scope& target = scopes.get(to, "scope");
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

int32_t mt_read(mt_tensor h, void* dst, int64_t numel, int32_t dtype, char** err) {
  return attempt(err, [&] {
    c10::AutoGradMode no_grad(false);
    c10::OptionalStreamGuard stream(thread_stream());
    const at::Tensor& t = tensor(h);
    view_as(t, dst, numel, dtype).copy_(t);
  });
}

int32_t mt_write(mt_tensor h, const void* src, int64_t numel, int32_t dtype, char** err) {
  return attempt(err, [&] {
    c10::AutoGradMode no_grad(false);
    c10::OptionalStreamGuard stream(thread_stream());
    at::Tensor& t = tensor(h);
    t.copy_(view_as(t, src, numel, dtype));
  });
}

int32_t mt_info(mt_tensor h, mt_tensor_info* out, char** err) {
  return attempt(err, [&] {
    const at::Tensor& t = tensor(h);
    if (t.dim() > 8) throw std::runtime_error("tensor of more than 8 dimensions");
    *out = {{}, int32_t(t.dim()), int32_t(t.scalar_type()), int32_t(t.device().type()), std::max<int32_t>(0, t.device().index()),
            t.requires_grad()};
    for (int64_t i = 0; i < t.dim(); i++) out->shape[i] = t.size(i);
  });
}

int32_t mt_require_grad(mt_tensor h, int32_t on, char** err) {
  return attempt(err, [&] {
    tensor(h).set_requires_grad(on);
  });
}

static variable_list list(const mt_tensor* h, int32_t n) {
  variable_list v(n);
  for (int32_t i = 0; i < n; i++)
    if (h[i]) v[i] = tensor(h[i]);
  return v;
}

int32_t mt_backward(mt_scope s, const mt_tensor* roots, const mt_tensor* grads, int32_t n, char** err) {
  return attempt(err, [&] {
    c10::OptionalStreamGuard stream(usable(s).stream);
    torch::autograd::backward(list(roots, n), list(grads, n));
  });
}

int32_t mt_gradients(mt_scope s, const mt_tensor* roots, const mt_tensor* grads, int32_t n, const mt_tensor* inputs, int32_t m,
                     mt_tensor* out, char** err) {
  return attempt(err, [&] {
    Scope& scope = usable(s);
    c10::OptionalStreamGuard stream(scope.stream);
    auto g = torch::autograd::grad(list(roots, n), list(inputs, m), list(grads, n), std::nullopt, false, /*allow_unused=*/true);
    for (int32_t i = 0; i < m; i++) out[i] = g[i].defined() ? put(scope, g[i]) : 0;
  });
}

mt_tensor mt_grad(mt_scope s, mt_tensor h, char** err) {
  return guard(err, mt_tensor(0), [&] {
    const at::Tensor& g = tensor(h).grad();
    return g.defined() ? put(usable(s), g) : 0;
  });
}

int32_t mt_clear_grad(mt_tensor h, char** err) {
  return attempt(err, [&] {
    tensor(h).mutable_grad().reset();
  });
}
