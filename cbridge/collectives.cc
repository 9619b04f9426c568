// Process groups: c10d's store and backends behind handles, and their operations on tensors.
#define USE_C10D_GLOO 1
#include "collectives.h"

#include <signal.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "bridge.h"

namespace molt {

using std::chrono::milliseconds;

NcclBackend* nccl_backend = nullptr;

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

// guard for what starts threads. They inherit its mask: a write to a dead peer on a thread that is not Go's would end the process.
template <class R, class F>
static R guard_threads(char** err, R failed, F f) {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  R result = guard(err, failed, f);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

// Each rank first says that it is here, so that who is missing or wrong is told by rank; a backend's own meeting cannot.
static void meet(c10d::Store& store, int rank, int size, milliseconds wait) {
  auto key = [](int r) { return "rank/" + std::to_string(r); };
  std::string agreed = store.compareSet("size", "", std::to_string(size)), missing;
  if (agreed != std::to_string(size)) throw std::runtime_error("other ranks joined a group of " + agreed);
  if (store.add(key(rank), 1) != 1) throw std::runtime_error("another process has joined as this rank");
  auto deadline = std::chrono::steady_clock::now() + wait;
  for (int r = 0; r < size; r++) {
    auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      store.wait({key(r)}, std::max(left, milliseconds(1)));
    } catch (const c10::DistStoreError&) {
      missing += " " + std::to_string(r);
    }
  }
  if (!missing.empty()) throw std::runtime_error("not joined within " + std::to_string(wait.count()) + " ms: rank" + missing);
}

static bool is_gloo(c10d::Backend& b) { return b.getBackendName() == c10d::GLOO_BACKEND_NAME; }

static std::mutex starting;

// Starts an operation and waits for it. c10d notes every start in one table of the process before it takes that table's lock: two
// groups at once, on two threads, ruin it. NCCL's start may wait for other ranks, so there it is left alone.
template <class F>
static void finish(c10d::Backend& b, F start) {
  std::unique_lock<std::mutex> lock(starting, std::defer_lock);
  if (is_gloo(b)) lock.lock();
  c10::intrusive_ptr<c10d::Work> work = start();
  if (lock) lock.unlock();
  work->wait();
}

static c10::intrusive_ptr<c10d::Backend> gloo_backend(c10::intrusive_ptr<c10d::Store> store, const char* local, int rank, int size,
                                                      milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(local));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, size, std::move(options));
  finish(*backend, [&] { return backend->barrier(); });  // past it no rank needs the store to get here: the one that runs it may close
  return backend;
}

// Gloo ends the process when another size arrives than the one that it waits for: ranks first compare what they are about to do.
static void agree(c10d::Backend& b, int32_t kind, const at::Tensor& t, int32_t arg) {
  bool pair = kind == MT_SEND || kind == MT_RECEIVE;
  std::string plan = c10::str(t.scalar_type(), t.sizes(), pair ? "" : c10::str(' ', kind, ' ', arg));
  int64_t hash = int64_t(std::hash<std::string>{}(plan) >> 1);
  at::Tensor mine = at::tensor({hash, -hash});
  std::vector<at::Tensor> all{mine.clone()};  // the maxima: of a hash that all share these are the same
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  finish(b, [&] { return kind == MT_SEND ? b.send(all, arg, 1) : kind == MT_RECEIVE ? b.recv(all, arg, 1) : b.allreduce(all, options); });
  if (!all[0].equal(mine)) throw std::runtime_error("another rank is at another operation, or has another type or shape of tensor");
}

static at::Tensor bytes(const at::Tensor& t) { return t.view({t.numel()}).view(at::kByte); }

// The backend's operation on contiguous t: its result, or t itself where it is in place. Data that only moves goes as bytes.
static at::Tensor run(c10d::Backend& b, int32_t kind, at::Tensor t, int32_t arg) {
  if (is_gloo(b)) agree(b, kind, t, arg);
  std::vector<int64_t> shape = t.sizes().vec(), equal_parts;
  if (shape.empty()) shape.push_back(1);
  if (kind == MT_ALL_GATHER) shape[0] *= b.getSize();
  if (kind == MT_REDUCE_SCATTER) shape[0] /= b.getSize();
  bool in_place = kind != MT_ALL_GATHER && kind != MT_REDUCE_SCATTER && kind != MT_ALL_TO_ALL;
  at::Tensor out = in_place ? t : at::empty(shape, t.options()), to = bytes(out);
  std::vector<at::Tensor> list{t}, raw{bytes(t)};
  switch (kind) {
    case MT_ALL_REDUCE: {
      c10d::AllreduceOptions options;
      bool mean = arg == c10d::ReduceOp::AVG;  // which Gloo lacks
      options.reduceOp = mean ? c10d::ReduceOp::SUM : c10d::ReduceOp::RedOpType(arg);
      finish(b, [&] { return b.allreduce(list, options); });
      if (mean) t.div_(b.getSize());
      break;
    }
    case MT_BROADCAST: {
      c10d::BroadcastOptions options;
      options.rootRank = arg;
      finish(b, [&] { return b.broadcast(raw, options); });
      break;
    }
    case MT_ALL_GATHER: finish(b, [&] { return b._allgather_base(to, raw[0]); }); break;
    case MT_REDUCE_SCATTER: finish(b, [&] { return b._reduce_scatter_base(out, t); }); break;
    case MT_ALL_TO_ALL: finish(b, [&] { return b.alltoall_base(to, raw[0], equal_parts, equal_parts); }); break;
    case MT_SEND: finish(b, [&] { return b.send(raw, arg, 0); }); break;
    case MT_RECEIVE: finish(b, [&] { return b.recv(raw, arg, 0); }); break;
  }
  return out;
}

}  // namespace molt

using namespace molt;

mt_group mt_store_open(const char* host, int32_t port, int32_t serve, int64_t timeout, char** err) {
  return guard_threads(err, mt_group(0), [&] {
    c10d::TCPStoreOptions options;
    options.port = uint16_t(port);
    options.isServer = serve != 0;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout);
    return groups.put({c10::make_intrusive<c10d::TCPStore>(host, options), {}});
  });
}

mt_group mt_group_open(mt_group parent, const char* backend, const char* name, const char* local, int32_t rank, int32_t size,
                       int64_t wait, int64_t timeout, char** err) {
  return guard_threads(err, mt_group(0), [&] {
    bool nccl = strcmp(backend, "nccl") == 0;
    if (nccl && !nccl_backend) throw std::runtime_error("NCCL needs the CUDA library: run `make cuda`");
    milliseconds limit(timeout);
    Group g{c10::make_intrusive<c10d::PrefixStore>(name, find(parent).store), {}};
    meet(*g.store, rank, size, milliseconds(wait));
    auto store = c10::make_intrusive<c10d::PrefixStore>(backend, g.store);
    g.backend = nccl ? nccl_backend(store, rank, size, limit) : gloo_backend(store, local, rank, size, limit);
    return groups.put(std::move(g));
  });
}

int32_t mt_group_close(mt_group h, char** err) {
  return attempt(err, [&] {
    Group last = find(h);  // ends outside the lock: it waits for work under way
    std::lock_guard<std::mutex> lock(groups_mutex);
    groups.drop({h});
  });
}

int32_t mt_group_barrier(mt_group h, char** err) {
  return guard_threads(err, -1, [&] {
    auto backend = find(h).backend;
    return finish(*backend, [&] { return backend->barrier(); }), 0;
  });
}

mt_tensor mt_collective(mt_scope s, mt_group g, int32_t kind, mt_tensor h, int32_t arg, char** err) {
  return guard_threads(err, mt_tensor(0), [&] {
    Scope& scope = usable(s);
    c10::AutoGradMode no_grad(false);
    c10::OptionalStreamGuard stream(scope.stream);
    at::Tensor target = tensor(h).detach(), t = target.contiguous(), out = run(*find(g).backend, kind, t, arg);
    if (!out.is_same(t)) return put(scope, out);
    if (!t.is_same(target)) target.copy_(t);
    if (kind != MT_SEND) target.unsafeGetTensorImpl()->bump_version();  // backward must notice a write that it did not record
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
    auto value = find(h).store->clone()->get(std::string("key/") + key);  // on its own connection: a wait holds nobody else up
    void* copy = malloc(value.size() + 1);
    memcpy(copy, value.data(), value.size());
    *n = int64_t(value.size());
    return copy;
  });
}
