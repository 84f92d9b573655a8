// A slot number for each call of a loaded program. Kernels that keep state from launch to launch find it by this
// number.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <mutex>

namespace jaxconv {

// The calls that may have a slot at the same time.
inline constexpr int kCallSlots = 1 << 14;

// The slot of one call, while its program is loaded. No other loaded call has the same number. The number is -1 if all
// slots are taken. The state that kernels keep under a number is in the memory of each device.
class CallSlot {
 public:
  CallSlot() {
    Pool& pool = ThePool();
    const std::lock_guard lock(pool.mutex);
    if (pool.used < kCallSlots) {
      number_ = pool.used++;
    } else if (!pool.free.empty()) {
      number_ = pool.free.front();
      pool.free.pop_front();
    }
  }
  ~CallSlot() {
    if (number_ < 0) return;
    Pool& pool = ThePool();
    const std::lock_guard lock(pool.mutex);
    pool.free.push_back(number_);
  }
  CallSlot(const CallSlot&) = delete;
  CallSlot& operator=(const CallSlot&) = delete;

  // How many calls have a slot now.
  static int Used() {
    Pool& pool = ThePool();
    const std::lock_guard lock(pool.mutex);
    return pool.used - static_cast<int>(pool.free.size());
  }

  // The number, below kCallSlots, for a launch on a stream of the current device. Launches that share state must not
  // overlap, so the answer is -1 if an earlier launch of the call was on another stream. Captured launches all get the
  // number: the CUDA graph orders them.
  int NumberOn(cudaStream_t stream) {
    cudaStreamCaptureStatus capture;
    int device;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || cudaGetDevice(&device) != cudaSuccess) return -1;
    if (capture != cudaStreamCaptureStatusNone) return number_;
    const std::lock_guard lock(mutex_);
    return streams_.try_emplace(device, stream).first->second == stream ? number_ : -1;
  }

 private:
  // Numbers that were never used come first, then those that have been free the longest.
  struct Pool {
    std::mutex mutex;
    int used = 0;
    std::deque<int> free;
  };
  static Pool& ThePool() {
    static Pool& pool = *new Pool;  // never destroyed: programs may be unloaded after static objects
    return pool;
  }

  int number_ = -1;
  std::mutex mutex_;
  std::map<int, cudaStream_t> streams_;  // by device
};

}  // namespace jaxconv
