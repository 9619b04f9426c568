// Process groups: c10d's store and backends behind handles, and their operations on tensors.
#define USE_C10D_GLOO 1
#include "collectives.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "bridge.h"

namespace molt {

using std::chrono::milliseconds;

c10::intrusive_ptr<c10d::Backend> (*nccl_backend)(c10::intrusive_ptr<c10d::Store>, int, int, milliseconds) = nullptr;

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;  // null: a store alone
};
static Slab<Group> groups;
static std::mutex groups_mutex;  // a group may be closed on another thread while it is in use: users hold copies

static Group find(mt_group h) {
  std::lock_guard<std::mutex> lock(groups_mutex);
  if (h == 0) throw std::runtime_error("the process group is closed");
  return groups.get(h, "process group");
}

// Each rank first says that it is here, so that who is missing or wrong is told by rank; a backend's own meeting cannot.
static void meet(c10d::Store& store, int rank, int size, milliseconds timeout) {
  auto key = [](int r) { return "rank/" + std::to_string(r); };
  std::string agreed = store.compareSet("size", "", std::to_string(size));
  if (agreed != std::to_string(size)) throw std::runtime_error("other ranks joined a group of " + agreed);
  if (store.add(key(rank), 1) != 1) throw std::runtime_error("another process has joined as this rank");
  auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string missing;
  for (int r = 0; r < size; r++) try {
      auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      store.wait({key(r)}, std::max(left, milliseconds(1)));
    } catch (const c10::DistStoreError&) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
  if (!missing.empty()) throw std::runtime_error("not joined within " + std::to_string(timeout.count()) + " ms: rank " + missing);
}

static c10::intrusive_ptr<c10d::Backend> gloo_backend(c10::intrusive_ptr<c10d::Store> store, const char* local, int rank, int size,
                                                      milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(local));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, size, std::move(options));
  backend->barrier()->wait();  // past it nobody needs the store: the rank that runs it may close
  return backend;
}

static at::Tensor bytes(const at::Tensor& t) { return t.view({t.numel()}).view(at::kByte); }

// The backend's operation on contiguous t: the result, t itself for those in place. Where data only moves, it goes as bytes of any type.
static at::Tensor run(c10d::Backend& b, int32_t kind, at::Tensor t, int32_t arg) {
  std::vector<int64_t> shape = t.sizes().vec(), even;
  if (shape.empty()) shape = {1};
  auto result = [&](int64_t rows) {
    shape[0] = rows;
    return at::empty(shape, t.options());
  };
  std::vector<at::Tensor> list{t}, raw{bytes(t)};
  switch (kind) {
    case MT_ALL_REDUCE: {
      auto op = c10d::ReduceOp::RedOpType(arg);
      bool mean = op == c10d::ReduceOp::AVG;  // which Gloo lacks
      if (mean && !t.is_floating_point()) throw std::runtime_error("the mean of integers is no integer: use Sum");
      c10d::AllreduceOptions options;
      options.reduceOp = mean ? c10d::ReduceOp::SUM : op;
      b.allreduce(list, options)->wait();
      return mean ? t.div_(b.getSize()) : t;
    }
    case MT_ALL_GATHER: {
      at::Tensor out = result(shape[0] * b.getSize()), to = bytes(out);
      b._allgather_base(to, raw[0])->wait();
      return out;
    }
    case MT_REDUCE_SCATTER: {
      at::Tensor out = result(shape[0] / b.getSize());
      b._reduce_scatter_base(out, t)->wait();
      return out;
    }
    case MT_BROADCAST: {
      c10d::BroadcastOptions options;
      options.rootRank = arg;
      b.broadcast(raw, options)->wait();
      return t;
    }
    case MT_ALL_TO_ALL: {
      at::Tensor out = result(shape[0]), to = bytes(out);
      b.alltoall_base(to, raw[0], even, even)->wait();
      return out;
    }
    case MT_SEND:
      b.send(raw, arg, 0)->wait();
      return t;
    case MT_RECEIVE:
      b.recv(raw, arg, 0)->wait();
      return t;
  }
  throw std::runtime_error("no such collective");
}

}  // namespace molt

using namespace molt;

mt_group mt_store_open(const char* host, int32_t port, int32_t serve, int64_t timeout, char** err) {
  return guard(err, mt_group(0), [&] {
    c10d::TCPStoreOptions options;
    options.port = uint16_t(port);
    options.isServer = serve != 0;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout);
    return groups.put({c10::make_intrusive<c10d::TCPStore>(host, options), {}});
  });
}

mt_group mt_group_open(mt_group parent, const char* backend, const char* name, const char* local, int32_t rank, int32_t size,
                       int64_t timeout, char** err) {
  return guard(err, mt_group(0), [&] {
    bool nccl = strcmp(backend, "nccl") == 0;
    if (nccl && !nccl_backend) throw std::runtime_error("NCCL needs the CUDA library: run `make cuda`");
    Group g{c10::make_intrusive<c10d::PrefixStore>(name, find(parent).store), {}};
    meet(*g.store, rank, size, milliseconds(timeout));
    auto store = c10::make_intrusive<c10d::PrefixStore>(backend, g.store);
    g.backend = nccl ? nccl_backend(store, rank, size, milliseconds(timeout)) : gloo_backend(store, local, rank, size, milliseconds(timeout));
    return groups.put(std::move(g));
  });
}

int32_t mt_group_close(mt_group h, char** err) {
  return attempt(err, [&] {
    Group last = find(h);  // outside the lock: its end waits for work under way
    std::lock_guard<std::mutex> lock(groups_mutex);
    groups.drop({h});
  });
}

int32_t mt_group_barrier(mt_group h, char** err) {
  return attempt(err, [&] { find(h).backend->barrier()->wait(); });
}

mt_tensor mt_collective(mt_scope s, mt_group g, int32_t kind, mt_tensor h, int32_t arg, char** err) {
  return guard(err, mt_tensor(0), [&] {
    Scope& scope = usable(s);
    c10::AutoGradMode no_grad(false);
    c10::OptionalStreamGuard stream(scope.stream);
    at::Tensor target = tensor(h).detach(), t = target.contiguous(), out = run(*find(g).backend, kind, t, arg);
    if (!out.is_same(t)) return put(scope, out);
    if (!t.is_same(target)) target.copy_(t);
    else if (kind != MT_SEND) target.unsafeGetTensorImpl()->bump_version();  // for autograd, which did not see the write
    return h;
  });
}

int32_t mt_store_set(mt_group h, const char* key, const void* data, int64_t n, char** err) {
  return attempt(err, [&] {
    auto p = static_cast<const uint8_t*>(data);
    find(h).store->set(std::string("key/") + key, std::vector<uint8_t>(p, p + n));
  });
}

void* mt_store_get(mt_group h, const char* key, int64_t* n, char** err) {
  return guard(err, static_cast<void*>(nullptr), [&] {
    auto value = find(h).store->clone()->get(std::string("key/") + key);  // its own connection: a wait holds nobody else up
    *n = int64_t(value.size());
    void* copy = malloc(value.size() + 1);
    memcpy(copy, value.data(), value.size());
    return copy;
  });
}
