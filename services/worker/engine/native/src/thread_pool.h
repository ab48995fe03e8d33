// A rank's threads: the caller and its helpers, which go through a step op by op with a barrier between ops. Threads
// take the tasks of an op in chunks from shared counters, so a thread that the system interrupts does fewer of them.
#pragma once
#include <immintrin.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ryz {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

constexpr int SPINS = 3000;  // polls before a wait gives up its core, some tens of microseconds
constexpr int64_t NO_LIMIT_NS = INT64_MAX / 4;

// A count that one thread raises and others wait for, with the core on which it was last raised. It may lie in memory
// shared by processes. A waiter spins first, since the count mostly changes within microseconds, then sleeps on a futex.
// It sleeps at once if the raising thread last ran on the waiter's core: that thread cannot run while the waiter spins.
struct alignas(64) EventCount {
  std::atomic<uint32_t> count{0};
  std::atomic<uint32_t> sleepers{0};
  std::atomic<int32_t> core{-1};

  uint32_t get() const { return count.load(std::memory_order_acquire); }
  bool reached(uint32_t wanted) const { return (int32_t)(get() - wanted) >= 0; }  // counts may wrap around

  void raise() {
    core.store(sched_getcpu(), std::memory_order_relaxed);
    count.fetch_add(1);
    if (sleepers.load()) futex(FUTEX_WAKE, INT32_MAX, nullptr);
  }

  // Returns false when the count is still lower after that many nanoseconds, or a little later.
  bool wait(uint32_t wanted, bool spin, int64_t limit_ns) {
    for (int i = 0; spin && i < SPINS; i++) {
      if (reached(wanted)) return true;
      if (i % 64 == 16 && core.load(std::memory_order_relaxed) == sched_getcpu()) break;
      _mm_pause();
    }
    if (reached(wanted)) return true;
    const int64_t deadline = now_ns() + limit_ns;
    sleepers.fetch_add(1);
    while (!reached(wanted) && now_ns() < deadline) {
      const uint32_t seen = count.load();
      const timespec nap = {0, 50000000};
      if ((int32_t)(seen - wanted) < 0) futex(FUTEX_WAIT, seen, &nap);
    }
    sleepers.fetch_sub(1);
    return reached(wanted);
  }

 private:
  // without FUTEX_PRIVATE_FLAG: ranks share event counts between processes
  void futex(int operation, uint32_t argument, const timespec* limit) {
    syscall(SYS_futex, &count, operation, argument, limit, nullptr, 0);
  }
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads, bool spin) : threads_(threads), spin_(spin), arrivals_(threads) {
    for (int i = 1; i < threads; i++) helpers_.emplace_back([this, i] { follow(i); });
  }
  ~ThreadPool() {
    stop_ = true;
    turn_.raise();
    for (auto& helper : helpers_) helper.join();
  }
  int threads() const { return threads_; }

  // Runs `work(thread)` once on every thread; returns when all have finished.
  void run_on_all(const std::function<void(int)>& work) {
    if (threads_ == 1) return work(0);
    work_ = &work;
    turn_.raise();
    work(0);
    barrier(0);
  }

  // Returns when every thread has called it.
  void barrier(int thread) {
    if (threads_ == 1) return;
    arrivals_[thread].raise();
    const uint32_t phase = arrivals_[thread].get();
    for (EventCount& arrival : arrivals_) arrival.wait(phase, spin_, NO_LIMIT_NS);
  }

 private:
  void follow(int thread) {
    prctl(PR_SET_NAME, "ryz-kernels");
    for (uint32_t turn = 1;; turn++) {
      turn_.wait(turn, spin_, NO_LIMIT_NS);
      if (stop_) return;
      (*work_)(thread);
      barrier(thread);
    }
  }

  const int threads_;
  const bool spin_;
  std::vector<EventCount> arrivals_;  // by thread: barriers that it has reached
  std::vector<std::thread> helpers_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> stop_{false};
  EventCount turn_;
};

// How many tasks of one thread's range are taken. A thread has the same range of an op in every step, so that what it
// reads is likely still in its core's cache; a thread that has finished its range takes tasks from the others'.
struct alignas(64) TaskCounter {
  std::atomic<int> next{0};
};

// Calls work(first, end) until all `count` tasks are taken. counters: [threads], zeros at first.
template <class Work>
void share_tasks(TaskCounter* counters, int threads, int thread, int64_t count, Work work) {
  for (int i = 0; i < threads; i++) {
    const int owner = (thread + i) % threads;
    const int begin = (int)(count * owner / threads), size = (int)(count * (owner + 1) / threads) - begin;
    std::atomic<int>& next = counters[owner].next;
    int first = next.load(std::memory_order_relaxed);
    while (first < size) {
      // large chunks first, single tasks at the end, so that all threads finish at about the same time
      const int chunk = threads == 1 ? size : std::max(1, (size - first) / 3);
      if (!next.compare_exchange_weak(first, first + chunk, std::memory_order_relaxed)) continue;
      work(begin + first, begin + first + chunk);
      first = next.load(std::memory_order_relaxed);
    }
  }
}

}  // namespace ryz
