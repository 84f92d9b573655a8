// Numbers for the calls of loaded programs, by which kernels find what they keep from launch to launch.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <mutex>

namespace jaxconv {

// Calls of loaded programs that kernels may keep something of.
inline constexpr int kCallSlots = 1 << 14;

// A call's number as long as its program is loaded: no other's, or -1, if too many are loaded. What is counted by it is
// in each device's own memory.
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

  // How many calls have numbers.
  static int Used() {
    Pool& pool = ThePool();
    const std::lock_guard lock(pool.mutex);
    return pool.used - static_cast<int>(pool.free.size());
  }

  // The number, below kCallSlots, for a launch on a stream of the current device, where it must follow the call's other
  // ones: -1 if one of before was on another stream. Those that are captured follow each other as their graphs do.
  int NumberOn(cudaStream_t stream) {
    cudaStreamCaptureStatus capture;
    int device;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || cudaGetDevice(&device) != cudaSuccess) return -1;
    if (capture != cudaStreamCaptureStatusNone) return number_;
    const std::lock_guard lock(mutex_);
    return streams_.try_emplace(device, stream).first->second == stream ? number_ : -1;
  }

 private:
  // Those that have never been used are given first, then those that have been free longest.
  struct Pool {
    std::mutex mutex;
    int used = 0;
    std::deque<int> free;
  };
  static Pool& ThePool() {
    static Pool& pool = *new Pool;  // programs may be unloaded after all else
    return pool;
  }

  int number_ = -1;
  std::mutex mutex_;
  std::map<int, cudaStream_t> streams_;  // of each device
};

}  // namespace jaxconv
