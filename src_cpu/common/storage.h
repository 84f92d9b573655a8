// The types that a problem's numbers are stored in and summed in, and memory.
#pragma once

#include <cstdint>
#include <new>
#include <type_traits>

#include "common/call.h"
#include "common/simd.h"
#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// Calls f(S{}) with the storage type of a number that is packed as T.
template <typename T, typename F>
auto WithStorage(DType type, const F& f) {
  if constexpr (sizeof(T) < sizeof(int32_t)) {
    return f(int8_t{});
  } else if constexpr (std::is_integral_v<T>) {
    return type == DType::kS8 ? f(int8_t{}) : f(int32_t{});
  } else {
    if constexpr (std::is_same_v<T, double>)
      if (type == DType::kF64) return f(double{});
    if constexpr (std::is_same_v<T, float>)
      if (type == DType::kS8) return f(int8_t{});
    if (type == DType::kBF16) return f(BF16{});
    if (type == DType::kF16) return f(F16{});
    if constexpr (std::is_same_v<T, float>) {
      if (type == DType::kE4M3) return f(E4M3{});
      if (type == DType::kE5M2) return f(E5M2{});
    }
    return f(float{});
  }
}

// Calls f(S{}) with the storage type of a result that is rounded from a number of type T.
template <typename T, typename F>
void WithRounded(DType type, const F& f) {
  if (type == DType::kS8) f(int8_t{});
  else if (type == DType::kS32) f(int32_t{});
  else WithStorage<T>(type, f);
}

// Calls f(T{}) with the type of the problem's sums. Integers are unsigned, because those may wrap.
template <typename F>
void WithSums(const ConvProblem& p, const F& f) {
  switch (SumType(p)) {
    case DType::kF64: return f(double{});
    case DType::kS32: return f(uint32_t{});
    default: return f(float{});
  }
}

constexpr int64_t kAlignment = 64;

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t n)
      : data_(static_cast<T*>(::operator new(Max<int64_t>(n, 1) * sizeof(T), std::align_val_t(kAlignment)))) {}
  ~Buffer() { ::operator delete(data_, std::align_val_t(kAlignment)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

inline const void* Offset(const void* data, DType type, int64_t elements) {
  return static_cast<const char*>(data) + elements * TraitsOf(type).bytes;
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
