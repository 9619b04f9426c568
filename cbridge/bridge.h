// What the files of libmolt share: the slab of handles, scopes and the guard that turns C++ exceptions into messages.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <string.h>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include "molt.h"

namespace molt {

struct Scope {
  bool grad = false;
  uint64_t thread = 0;
  mt_scope parent = 0;
  int children = 0;
  std::vector<mt_tensor> own;
  std::vector<mt_tensor> more;  // results of the last call beyond those that its caller had room for
  uint64_t sequence = 0;        // of the first node that the last call may have added to the graph
  std::optional<c10::Device> device;  // where tensors are made, if not on the CPU
  std::optional<c10::Stream> stream;  // where operators run, if not on a device's default stream
};

// What a call runs under comes from its scope, never from what an earlier call left on the thread.
struct Guards {
  c10::AutoGradMode grad;
  c10::OptionalStreamGuard stream;
  explicit Guards(const Scope& s) : grad(s.grad), stream(s.stream) {}
};

// A slab hands out numbers for objects that never move: low half slot, high half generation, which is odd while the slot is taken.
template <class T>
class Slab {
 public:
  uint64_t put(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) grow();
    uint32_t i = free_.back();
    free_.pop_back();
    Slot& slot = at(i);
    slot.value = std::move(value);
    live_++;
    return uint64_t(++slot.generation) << 32 | i;
  }
  // The object itself, for the one thread that may also drop it.
  T& get(uint64_t handle, const char* what) {
    Slot& slot = find(handle, what);
    check(slot, handle, what);
    return slot.value;
  }
  // A copy: another thread may drop the object meanwhile.
  T copy(uint64_t handle, const char* what) {
    Slot& slot = find(handle, what);
    Busy busy(slot);
    check(slot, handle, what);
    return slot.value;
  }
  void drop(const std::vector<uint64_t>& handles) {
    for (uint64_t h : handles) {
      Slot& slot = at(uint32_t(h));
      T dead;  // freed outside the locks: it may be a whole graph
      Busy busy(slot);
      slot.generation++;
      std::swap(dead, slot.value);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    for (uint64_t h : handles) free_.push_back(uint32_t(h));
    live_ -= int64_t(handles.size());
  }
  int64_t live() const { return live_; }

 private:
  struct Slot {
    T value;
    std::atomic<uint32_t> generation{0};
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
  };
  struct Busy {
    explicit Busy(Slot& s) : slot(s) {
      while (slot.busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~Busy() { slot.busy.clear(std::memory_order_release); }
    Slot& slot;
  };
  static constexpr int kShift = 12, kBlocks = 1 << 14;
  Slot& at(uint32_t i) { return slots_[i >> kShift][i & ((1 << kShift) - 1)]; }
  Slot& find(uint64_t handle, const char* what) {
    uint32_t i = uint32_t(handle);
    if (!(handle >> 32 & 1) || (i >> kShift) >= uint32_t(blocks_.load(std::memory_order_acquire)))
      throw std::runtime_error(std::string("no such ") + what);
    return at(i);
  }
  static void check(const Slot& slot, uint64_t handle, const char* what) {
    if (slot.generation.load(std::memory_order_acquire) != uint32_t(handle >> 32))
      throw std::runtime_error(std::string("use of a ") + what + " after its scope was closed");
  }
  void grow() {
    int b = blocks_;
    if (b == kBlocks) throw std::runtime_error("too many live handles");
    slots_[b] = new Slot[1 << kShift];
    for (int k = (1 << kShift) - 1; k >= 0; k--) free_.push_back(uint32_t(b << kShift | k));
    blocks_.store(b + 1, std::memory_order_release);
  }
  Slot* slots_[kBlocks] = {};
  std::atomic<int> blocks_{0};
  std::atomic<int64_t> live_{0};
  std::vector<uint32_t> free_;
  std::mutex mutex_;
};

at::Tensor tensor(mt_tensor h);
Scope& usable(mt_scope s);                 // refuses a closed scope, another thread's, one with an open child
mt_tensor put(Scope& s, at::Tensor t);     // the result lives in s; 0 for an undefined tensor
void join(const Scope& s, const Scope& parent);                                      // s has closed: parent's stream waits for it
void hand_over(const at::Tensor& t, const Scope& from, const Scope& to);             // t will be used on the stream of another scope
void use_arguments(const std::vector<c10::IValue>& arguments, const Scope& s);       // an operator's, on the stream of s
std::optional<c10::Stream> thread_stream();                                          // of the innermost scope open on this thread

template <class R, class F>
R guard(char** err, R failed, F f) {
  try {
    return f();
  } catch (const c10::Error& e) {
    *err = strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    *err = strdup(e.what());
  } catch (...) {
    *err = strdup("unknown C++ exception");
  }
  return failed;
}
template <class F>
int32_t attempt(char** err, F f) {
  return guard(err, -1, [&] { return f(), 0; });
}

}  // namespace molt
