// A rank's threads: the caller and helpers that follow it through a step, op by op, with a barrier between ops.
// Work inside an op is taken piece by piece from a counter, so a thread that the system disturbs gets less of it.
#pragma once
#include <immintrin.h>
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

// A number that one thread changes and others wait for. Who waits longer than a spin sleeps until it is woken: a
// thread that only yielded would keep its place on a core that the one it waits for may need, and the system would
// see no reason to use another core.
struct alignas(64) Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  uint32_t get() const { return value.load(std::memory_order_acquire); }
  void set(uint32_t next) {
    value.store(next);
    if (sleepers.load()) futex(FUTEX_WAKE, INT32_MAX, nullptr);
  }
  // Returns false when the value is still `old` after that many nanoseconds, or a little later.
  bool wait_change(uint32_t old, bool spin, int64_t limit_ns) {
    for (int i = 0; spin && i < SPINS; i++) {
      if (get() != old) return true;
      _mm_pause();
    }
    const int64_t deadline = now_ns() + limit_ns;
    sleepers.fetch_add(1);
    while (value.load() == old && now_ns() < deadline) {
      const timespec nap = {0, 50000000};
      futex(FUTEX_WAIT, old, &nap);
    }
    sleepers.fetch_sub(1);
    return get() != old;
  }

 private:
  // not the private kind: ranks share signals between processes
  void futex(int operation, uint32_t argument, const timespec* limit) {
    syscall(SYS_futex, &value, operation, argument, limit, nullptr, 0);
  }
};

constexpr int64_t NO_LIMIT_NS = INT64_MAX / 4;

class Team {
 public:
  explicit Team(int threads, bool spin) : threads_(threads), spin_(spin) {
    for (int i = 1; i < threads; i++) helpers_.emplace_back([this, i] { follow(i); });
  }
  ~Team() {
    stop_ = true;
    turn_.set(turn_.get() + 1);
    for (auto& helper : helpers_) helper.join();
  }
  int threads() const { return threads_; }

  // Runs `work(thread)` once on every thread, together; returns when all are through.
  void run(const std::function<void(int)>& work) {
    work_ = &work;
    if (threads_ > 1) turn_.set(turn_.get() + 1);
    work(0);
    barrier();
  }

  // Nobody leaves before all have come.
  void barrier() {
    if (threads_ == 1) return;
    const uint32_t phase = phase_.get();
    if (arrived_.fetch_add(1) == threads_ - 1) {
      arrived_.store(0);
      phase_.set(phase + 1);
    } else {
      phase_.wait_change(phase, spin_, NO_LIMIT_NS);
    }
  }

 private:
  void follow(int thread) {
    prctl(PR_SET_NAME, "ryz-kernels");
    for (uint32_t seen = 0;; seen++) {
      while (!turn_.wait_change(seen, spin_, NO_LIMIT_NS)) {
      }
      if (stop_) return;
      (*work_)(thread);
      barrier();
    }
  }

  const int threads_;
  const bool spin_;
  std::vector<std::thread> helpers_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> stop_{false};
  Signal turn_, phase_;
  alignas(64) std::atomic<int> arrived_{0};
};

// Pieces of one op's work, handed out in order.
struct alignas(64) Counter {
  std::atomic<int> next{0};

  template <class Work>
  void share(int count, int threads, Work work) {
    const int piece = threads == 1 ? count : std::max(1, count / (threads * 8));
    for (;;) {
      const int first = next.fetch_add(piece, std::memory_order_relaxed);
      if (first >= count) return;
      work(first, std::min(count, first + piece));
    }
  }
};

}  // namespace ryz
