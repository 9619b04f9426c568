// A caching CPU allocator: glibc's heap fragments under tensors of less than 32 MB. Blocks of 256 KB and more are mapped by size
// class (eight per power of two) and kept for the next tensor of that class, up to a bound; smaller ones are the heap's.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>
#include "molt.h"

namespace {

constexpr size_t kMin = 256 << 10, kBound = size_t(512) << 20;

class CachingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    c10::Device cpu(c10::kCPU);
    if (n == 0) return {nullptr, nullptr, &release, cpu};
    void* p = nullptr;
    if (n < kMin) {
      if (posix_memalign(&p, 64, n)) throw std::bad_alloc();
      return {p, p, &release, cpu};
    }
    p = block(size_class(n));
    return {p, p, &release, cpu};
  }
  void copy_data(void* dst, const void* src, std::size_t n) const override { default_copy_data(dst, src, n); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  static mt_memory_info info() {
    std::lock_guard<std::mutex> lock(mutex);
    return total;
  }

 private:
  static std::mutex mutex;
  static std::unordered_map<size_t, std::vector<void*>> idle;  // by size class
  static std::unordered_map<void*, size_t> sizes;
  static mt_memory_info total;

  static size_t size_class(size_t n) {
    size_t step = size_t(1) << (63 - __builtin_clzll(n) - 3);
    return (n + step - 1) & ~(step - 1);
  }

  static void* block(size_t size) {
    std::lock_guard<std::mutex> lock(mutex);
    void* p;
    auto& list = idle[size];
    if (!list.empty()) {
      p = list.back();
      list.pop_back();
      total.cached -= size;
    } else {
      p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) throw std::bad_alloc();
      sizes[p] = size;
    }
    total.used += size;
    if (total.used + total.cached > total.peak) total.peak = total.used + total.cached;
    return p;
  }

  static void release(void* p) {
    if (uintptr_t(p) % 4096) return free(p);  // mapped blocks lie on page borders, the heap's almost never
    std::lock_guard<std::mutex> lock(mutex);
    auto it = sizes.find(p);
    if (it == sizes.end()) return free(p);
    size_t size = it->second;
    total.used -= size;
    if (size_t(total.cached) + size > kBound) {
      munmap(p, size);
      sizes.erase(it);
      return;
    }
    idle[size].push_back(p);
    total.cached += size;
  }
};

std::mutex CachingAllocator::mutex;
std::unordered_map<size_t, std::vector<void*>> CachingAllocator::idle;
std::unordered_map<void*, size_t> CachingAllocator::sizes;
mt_memory_info CachingAllocator::total;

CachingAllocator allocator;
struct Register {
  Register() { c10::SetCPUAllocator(&allocator, /*priority=*/1); }
} register_allocator;

}  // namespace

mt_memory_info mt_memory() { return CachingAllocator::info(); }
