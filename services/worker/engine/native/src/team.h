// A rank's threads: the caller and helpers that follow it through a step, op by op, with a barrier between ops.
// Work inside an op is taken piece by piece from a counter, so a thread that the system disturbs gets less of it.
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

// A count that one thread raises and others wait for, with the core on which it was last raised. Processes may share
// one. Who waits spins for a while, since the count mostly changes within microseconds, then sleeps until woken. It
// sleeps at once where the one it waits for was last seen on its own core: that one cannot run while it spins.
struct alignas(64) Signal {
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
  // not the private kind: ranks share signals between processes
  void futex(int operation, uint32_t argument, const timespec* limit) {
    syscall(SYS_futex, &count, operation, argument, limit, nullptr, 0);
  }
};

class Team {
 public:
  explicit Team(int threads, bool spin) : threads_(threads), spin_(spin), arrivals_(threads) {
    for (int i = 1; i < threads; i++) helpers_.emplace_back([this, i] { follow(i); });
  }
  ~Team() {
    stop_ = true;
    turn_.raise();
    for (auto& helper : helpers_) helper.join();
  }
  int threads() const { return threads_; }

  // Runs `work(thread)` once on every thread, together; returns when all are through.
  void run(const std::function<void(int)>& work) {
    if (threads_ == 1) return work(0);
    work_ = &work;
    turn_.raise();
    work(0);
    barrier(0);
  }

  // Nobody leaves before all have come.
  void barrier(int thread) {
    if (threads_ == 1) return;
    arrivals_[thread].raise();
    const uint32_t phase = arrivals_[thread].get();
    for (Signal& arrival : arrivals_) arrival.wait(phase, spin_, NO_LIMIT_NS);
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
  std::vector<Signal> arrivals_;  // of each thread, how many barriers it has come to
  std::vector<std::thread> helpers_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> stop_{false};
  Signal turn_;
};

// One op's work, in pieces. Each thread has a part of its own, the same one in every step, so that what it reads is
// likely still in its core's cache; who is through with its part takes pieces of the others'.
struct alignas(64) Counter {
  std::atomic<int> next{0};
};

// counters: one for each thread, zero at first
template <class Work>
void share(Counter* counters, int threads, int thread, int64_t count, Work work) {
  for (int i = 0; i < threads; i++) {
    const int owner = (thread + i) % threads;
    const int begin = (int)(count * owner / threads), size = (int)(count * (owner + 1) / threads) - begin;
    std::atomic<int>& next = counters[owner].next;
    int first = next.load(std::memory_order_relaxed);
    while (first < size) {
      // large pieces first, single ones at the end, so that all are through at about the same time
      const int piece = threads == 1 ? size : std::max(1, (size - first) / 3);
      if (!next.compare_exchange_weak(first, first + piece, std::memory_order_relaxed)) continue;
      work(begin + first, begin + first + piece);
      first = next.load(std::memory_order_relaxed);
    }
  }
}

}  // namespace ryz
