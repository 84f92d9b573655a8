// A parallel loop on a thread pool that only schedules.
//
// XLA's pool may be saturated, or may be the very thread that calls: a task that was scheduled may start late or only
// after the caller returns. So the caller claims items like any task does, and waits only for items that a running
// task has claimed already. A task that starts late finds no item left and touches nothing but the shared counters.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace jaxconv {

namespace internal {

template <typename F>
struct Loop {
  const int64_t items;
  const F* const body;  // lives in the caller's frame: only for who has claimed an item
  std::atomic<int64_t> claimed{0};
  std::atomic<int64_t> done{0};
  std::atomic<int64_t> participants{0};

  Loop(int64_t items, const F* body) : items(items), body(body) {}

  void Work() {
    int64_t item = claimed.fetch_add(1);
    if (item >= items) return;
    const int64_t worker = participants.fetch_add(1);
    for (; item < items; item = claimed.fetch_add(1)) {
      (*body)(worker, item);
      if (done.fetch_add(1) + 1 == items) done.notify_all();
    }
  }

  void Wait() {
    for (int64_t seen = done.load(); seen != items; seen = done.load()) done.wait(seen);
  }
};

}  // namespace internal

// Calls body(worker, item) once for every item in [0, items), from at most `threads` threads at a time, each with its
// own worker in [0, threads). `schedule` hands a callable to the pool. The body must not throw.
template <typename Schedule, typename F>
void ParallelFor(int64_t threads, Schedule&& schedule, int64_t items, const F& body) {
  if (items <= 0) return;
  threads = std::min(threads, items);
  if (threads <= 1) {
    for (int64_t item = 0; item < items; ++item) body(int64_t{0}, item);
    return;
  }
  auto loop = std::make_shared<internal::Loop<F>>(items, &body);
  try {
    for (int64_t i = 1; i < threads; ++i) schedule([loop] { loop->Work(); });
  } catch (...) {
    // Tasks that were scheduled may be running already: go on with those.
  }
  loop->Work();
  loop->Wait();
}

}  // namespace jaxconv
