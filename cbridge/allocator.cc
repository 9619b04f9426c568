// A caching CPU allocator: glibc's heap fragments under tensors of less than 32 MB. Blocks of 256 KB and more are mapped by size
// class (eight per power of two) and kept for the next tensor of that class. What is kept never raises the footprint above the
// highest that live tensors needed by more than an eighth: past that, a new block takes the place of idle ones. With less room blocks
// come and go all the time, and the kernel clears their pages for a fifth of a training step. Smaller tensors are the heap's.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>
#include "molt.h"

namespace {

constexpr size_t kMin = 256 << 10, kHuge = 2 << 20, kPage = 4096;

class CachingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    c10::Device cpu(c10::kCPU);
    if (n == 0) return {nullptr, nullptr, &release, cpu};
    void* p = n < kMin ? heap(n) : block(size_class(n));
    return {p, p, &release, cpu};
  }
  void copy_data(void* dst, const void* src, std::size_t n) const override { default_copy_data(dst, src, n); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  static mt_memory_info info() {
    std::lock_guard<std::mutex> lock(mutex);
    return total;
  }

 private:
  inline static std::mutex mutex;
  inline static std::map<size_t, std::vector<void*>> idle;  // by size class; no list is empty
  inline static std::unordered_map<void*, size_t> sizes;
  inline static mt_memory_info total;
  inline static int64_t most;  // highest total.used so far

  static size_t size_class(size_t n) {
    size_t step = size_t(1) << (63 - __builtin_clzll(n) - 3);
    return (n + step - 1) & ~(step - 1);
  }

  // Plain malloc is twice as fast as its aligned sister. What it gave stands before the block, which never lies on a page border.
  static void* heap(size_t n) {
    void* raw = malloc(n + 128);
    if (!raw) throw std::bad_alloc();
    uintptr_t p = (uintptr_t(raw) + 64) & ~uintptr_t(63);
    if (p % kPage == 0) p += 64;
    reinterpret_cast<void**>(p)[-1] = raw;
    return reinterpret_cast<void*>(p);
  }

  static void* block(size_t size) {
    std::lock_guard<std::mutex> lock(mutex);
    const int64_t used = total.used + int64_t(size), limit = std::max(most, used);
    auto it = idle.find(size);
    if (it != idle.end()) {
      total.used = used, most = limit;
      total.cached -= size;
      return take(it);
    }
    while (used + total.cached > limit + limit / 8 && !idle.empty()) unmap(std::prev(idle.end()));
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("no memory for a tensor of " + std::to_string(size) + " bytes");
    total.used = used, most = limit;
    if (size >= kHuge) madvise(p, size, MADV_HUGEPAGE);  // a page fault for every 4 KB is a tenth of a training step
    sizes[p] = size;
    if (total.used + total.cached > total.peak) total.peak = total.used + total.cached;
    return p;
  }

  static void* take(std::map<size_t, std::vector<void*>>::iterator it) {
    void* p = it->second.back();
    it->second.pop_back();
    if (it->second.empty()) idle.erase(it);
    return p;
  }

  static void unmap(std::map<size_t, std::vector<void*>>::iterator it) {
    size_t size = it->first;
    void* p = take(it);
    munmap(p, size);
    sizes.erase(p);
    total.cached -= size;
  }

  static void release(void* p) {
    if (!p) return;
    if (uintptr_t(p) % kPage) return free(static_cast<void**>(p)[-1]);
    std::lock_guard<std::mutex> lock(mutex);
    auto it = sizes.find(p);
    total.used -= it->second;
    total.cached += it->second;
    idle[it->second].push_back(p);
  }
};

#ifndef __SANITIZE_ADDRESS__  // which sees only what is freed
CachingAllocator allocator;
struct Register {
  Register() { c10::SetCPUAllocator(&allocator, /*priority=*/1); }
} register_allocator;
#endif

}  // namespace

mt_memory_info mt_memory() { return CachingAllocator::info(); }
