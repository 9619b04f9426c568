// Backward, and the debug mode that names what went wrong in it.
#include "bridge.h"

#include <algorithm>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace molt {

using torch::autograd::Node;
using torch::autograd::variable_list;

// What a labelled operator of the graph was doing last, over all threads of one backward: libtorch hands it on to them.
struct Trace : c10::DebugInfoBase {
  static constexpr auto kKind = c10::DebugInfoKind::TEST_INFO_2;  // libtorch itself uses the other kinds
  std::mutex mutex;
  std::string where;
  static void set(const std::string& where) {
    if (auto* t = static_cast<Trace*>(c10::ThreadLocalDebugInfo::get(kKind))) {
      std::lock_guard<std::mutex> lock(t->mutex);
      t->where = where;
    }
  }
};

static std::atomic<bool> any_label{false};

static bool finite(const at::Tensor& t) {
  if (!t.defined() || t.layout() != at::kStrided || !(t.is_floating_point() || t.is_complex())) return true;
  return at::isfinite(t).all().item<bool>();
}

struct Before : torch::autograd::FunctionPreHook {
  std::string where;
  explicit Before(std::string w) : where(std::move(w)) {}
  variable_list operator()(const variable_list& grads) override { return Trace::set(where), grads; }
};

struct After : torch::autograd::FunctionPostHook {
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    for (size_t i = 0; i < outputs.size(); i++)
      if (!finite(outputs[i]) && std::all_of(inputs.begin(), inputs.end(), finite))
        throw std::runtime_error("its backward made a NaN or Inf, the first one, in the gradient of its differentiable input " +
                                 std::to_string(i + 1));
    return Trace::set(""), outputs;
  }
};

static bool labelled(Node& n) {
  for (const auto& hook : n.pre_hooks())
    if (dynamic_cast<Before*>(hook.get())) return true;
  return false;
}

// One operator may have made several nodes: all those above its result that are new, from that sequence number on.
static void label(const at::Tensor& t, uint64_t sequence, const char* where) {
  any_label = true;
  std::vector<std::shared_ptr<Node>> todo{t.grad_fn()};
  while (!todo.empty()) {
    auto n = todo.back();
    todo.pop_back();
    if (!n || n->num_outputs() == 0 || n->sequence_nr() < sequence || labelled(*n)) continue;  // no outputs: a leaf's accumulator
    n->add_pre_hook(std::make_unique<Before>(where));
    n->add_post_hook(std::make_unique<After>());
    for (const auto& edge : n->next_edges()) todo.push_back(edge.function);
  }
}

template <class F>
static void traced(F f) {
  if (!any_label) return f();
  auto trace = std::make_shared<Trace>();
  c10::DebugInfoGuard guard(Trace::kKind, trace);
  try {
    f();
  } catch (const std::exception& e) {
    if (trace->where.empty()) throw;
    auto* error = dynamic_cast<const c10::Error*>(&e);
    throw std::runtime_error(trace->where + ": " + (error ? error->what_without_backtrace() : e.what()));
  }
}

static variable_list list(const mt_tensor* h, int32_t n) {
  variable_list v(n);
  for (int32_t i = 0; i < n; i++)
    if (h[i]) v[i] = tensor(h[i]);
  return v;
}

}  // namespace molt

using namespace molt;

int32_t mt_require_grad(mt_tensor h, int32_t on, char** err) {
  return attempt(err, [&] { tensor(h).set_requires_grad(on); });
}

int32_t mt_label(mt_scope s, const mt_tensor* results, int32_t n, const char* where, char** err) {
  return attempt(err, [&] {
    Scope& scope = usable(s);
    for (const auto& t : list(results, n))
      if (t.defined()) label(t, scope.sequence, where);
  });
}

int32_t mt_backward(mt_scope s, const mt_tensor* roots, const mt_tensor* grads, int32_t n, char** err) {
  return attempt(err, [&] {
    c10::OptionalStreamGuard stream(usable(s).stream);
    traced([&] { torch::autograd::backward(list(roots, n), list(grads, n)); });
  });
}

int32_t mt_gradients(mt_scope s, const mt_tensor* roots, const mt_tensor* grads, int32_t n, const mt_tensor* inputs, int32_t m,
                     mt_tensor* out, char** err) {
  return attempt(err, [&] {
    Scope& scope = usable(s);
    c10::OptionalStreamGuard stream(scope.stream);
    variable_list g;
    traced([&] {
      g = torch::autograd::grad(list(roots, n), list(inputs, m), list(grads, n), std::nullopt, false, /*allow_unused=*/true);
    });
    for (int32_t i = 0; i < m; i++) {  // each in memory of its own: writing to one changes no other, and nothing that was given
      bool own = !g[i].defined() || (g[i].is_non_overlapping_and_dense() && g[i].use_count() == 1 && g[i].storage().use_count() == 1);
      out[i] = put(scope, own ? g[i] : g[i].clone());
    }
  });
}

mt_tensor mt_grad(mt_scope s, mt_tensor h, char** err) {
  return guard(err, mt_tensor(0), [&] { return put(usable(s), tensor(h).grad()); });
}

int32_t mt_clear_grad(mt_tensor h, char** err) {
  return attempt(err, [&] { tensor(h).mutable_grad().reset(); });
}
