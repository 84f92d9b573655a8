// PTX instructions that have no function in CUDA C++.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace jaxconv::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Keeps a value in its register. Otherwise the compiler may compute it again at each use.
__device__ __forceinline__ void Keep(int32_t& value) { asm volatile("" : "+r"(value)); }
// The same for an address. The compiler must still know that it is in global memory.
template <typename T>
__device__ __forceinline__ void Keep(const T*& value) {
  asm volatile("" : "+l"(value));
  __builtin_assume(__isGlobal(value));
}

// Turns an integer into the bits of the nearest float32, in its register. Otherwise the compiler may take another
// register, and then moves many of them where branches meet.
__device__ __forceinline__ void ConvertInPlace(int32_t& number) {
  asm volatile("{ .reg .f32 converted; cvt.rn.f32.s32 converted, %0; mov.b32 %0, converted; }" : "+r"(number));
}

// base + a * b in one instruction. For a sequence of these, the compiler would emit several additions each.
__device__ __forceinline__ const char* AddProduct(const char* base, int32_t a, int32_t b) {
  const char* sum;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(a), "r"(b), "l"(base));
  return sum;
}

// cp.async: copies 16 bytes to shared memory without registers. If not `valid`, it writes zeros and does not read from
// the address. It has no "memory" clobber, so that the compiler may move it among arithmetic. WaitForCopies orders it
// with other accesses.
template <bool kFetchesLine = false>
__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from, bool valid) {
  if constexpr (kFetchesLine) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
  }
}

// Copies 8 bytes. It stays behind the loads before it, which may be of the same address.
__device__ __forceinline__ void CopyHalfAsync(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}

// Increments a counter, which goes from `last` back to zero, and returns the old value. It is not an atomic addition,
// because ptxas combines the additions of a warp, and waits for the result.
__device__ __forceinline__ uint32_t AtomicInc(uint32_t* count, uint32_t last) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(last) : "memory");
  return before;
}

// Prefetches a cache line to L2.
__device__ __forceinline__ void Prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Brings a word's sector to L1, through 4 bytes of shared memory that nobody reads: a prefetch ends in L2.
__device__ __forceinline__ void BringToL1(uint32_t unread, const void* word) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(unread), "l"(word));
}
inline constexpr int kLineBytes = 128;

__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending committed groups of this thread's copies are pending.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A named barrier for kThreads threads of the CTA, in whole warps. Some of them may arrive without waiting. Number 0 is
// that of __syncthreads.
template <int kThreads, int kBarrier = 1>
__device__ __forceinline__ void NamedBarrierSync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
template <int kThreads, int kBarrier = 1>
__device__ __forceinline__ void NamedBarrierArrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// A barrier for the threads of this warp group. It uses barriers from 1 on, so a kernel that calls it must not call
// NamedBarrierSync.
__device__ __forceinline__ void SyncWarpgroup() {
  asm volatile("bar.sync %0, 128;" ::"r"(threadIdx.x / 128 + 1) : "memory");
}

// The same barrier. Returns whether all threads have called it with true.
__device__ __forceinline__ bool AllOfWarpgroup(bool is_true) {
  uint32_t are_true;
  asm volatile(
      "{ .reg .pred own, all; setp.ne.u32 own, %1, 0; bar.red.and.pred all, %2, 128, own; selp.u32 %0, 1, 0, all; }"
      : "=r"(are_true)
      : "r"(static_cast<uint32_t>(is_true)), "r"(threadIdx.x / 128 + 1)
      : "memory");
  return are_true != 0;
}

// ldmatrix: four 8 x 8 matrices of 16-bit elements. Lane 8 * j + i gives the address of row i of matrix j.
template <bool kTranspose>
__device__ __forceinline__ void LoadMatrices(uint32_t (&out)[4], uint32_t address) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address));
  }
}

// Two matrices, with the addresses of lanes 0 to 15.
template <bool kTranspose>
__device__ __forceinline__ void LoadTwoMatrices(uint32_t& first, uint32_t& second, uint32_t address) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(first), "=r"(second)
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(address));
  }
}

// movmatrix: transposes an 8 x 8 matrix. Lane 4 * i + j has the elements 2j and 2j + 1 of row i.
__device__ __forceinline__ uint32_t Transpose(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

__device__ __forceinline__ uint32_t LoadWord(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}

__device__ __forceinline__ int4 LoadVector(uint32_t address) {
  int4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

__device__ __forceinline__ void StoreWord(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ void StoreTwoWords(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}

__device__ __forceinline__ void LoadPair(uint32_t& first, uint32_t& second, uint32_t address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(address));
}

// The greater and the lesser of two numbers. NaN if one of them is.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}
__device__ __forceinline__ float MinOrNan(float a, float b) {
  float lesser;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(lesser) : "f"(a), "f"(b));
  return lesser;
}

// 2^x and 1 / x to 22 bits, in one instruction: subnormal results are zeros.
__device__ __forceinline__ float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

// The same of two numbers of 16 bits each: at least `low`, and at most `high`.
template <typename T>
__device__ __forceinline__ uint32_t ClipPair(uint32_t pair, uint32_t low, uint32_t high) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("max.NaN.f16x2 %0, %0, %1; min.NaN.f16x2 %0, %0, %2;" : "+r"(pair) : "r"(low), "r"(high));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>, "a type of 16 bits");
    asm("max.NaN.bf16x2 %0, %0, %1; min.NaN.bf16x2 %0, %0, %2;" : "+r"(pair) : "r"(low), "r"(high));
  }
  return pair;
}

// Four numbers, rounded to nearest even, as int8. They saturate.
__device__ __forceinline__ uint32_t PackInt8(const float (&four)[4]) {
  uint32_t packed;
  asm("{ .reg .b32 upper; cvt.pack.sat.s8.s32.b32 upper, %4, %3, 0; cvt.pack.sat.s8.s32.b32 %0, %2, %1, upper; }"
      : "=r"(packed)
      : "r"(__float2int_rn(four[0])), "r"(__float2int_rn(four[1])), "r"(__float2int_rn(four[2])),
        "r"(__float2int_rn(four[3])));
  return packed;
}

// For each of four bytes its highest bit, eight times.
__device__ __forceinline__ uint32_t SignsOf(uint32_t four) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(signs) : "r"(four));
  return signs;
}

// Stores two bytes to shared memory, and loads them.
__device__ __forceinline__ void StoreHalf(uint32_t address, uint16_t half) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
}
__device__ __forceinline__ uint16_t LoadHalf(uint32_t address) {
  uint16_t half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
  return half;
}

// Stores words to device memory, up to 16 bytes at once. In C++ the compiler may split such a store into words.
template <int kWords>
__device__ __forceinline__ void StoreWords(void* to, const uint32_t (&words)[kWords]) {
  if constexpr (kWords == 1) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(words[0]) : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1]) : "memory");
  } else {
    static_assert(kWords % 4 == 0, "words are stored by one, two or four");
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(static_cast<uint32_t*>(to) + i), "r"(words[i]),
                   "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
                   : "memory");
    }
  }
}

// Stores one number, or two neighbours, to device memory if the condition holds: without a branch, which takes more
// instructions than the store. Each type has registers of its kind: copies in others would be registers more.
#define JAXCONV_STORE_IF(T, SIZE, REGISTER)                                              \
  __device__ __forceinline__ void StoreIf(bool condition, void* to, T number) {          \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global." SIZE              \
                 " [%1], %2; }" ::"r"(static_cast<int>(condition)),                      \
                 "l"(to), REGISTER(number)                                               \
                 : "memory");                                                            \
  }                                                                                      \
  __device__ __forceinline__ void StoreIf(bool condition, void* to, T first, T second) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.v2." SIZE           \
                 " [%1], {%2, %3}; }" ::"r"(static_cast<int>(condition)),                \
                 "l"(to), REGISTER(first), REGISTER(second)                              \
                 : "memory");                                                            \
  }
JAXCONV_STORE_IF(float, "f32", "f")
JAXCONV_STORE_IF(int32_t, "s32", "r")
JAXCONV_STORE_IF(uint32_t, "u32", "r")
JAXCONV_STORE_IF(uint16_t, "u16", "h")
#undef JAXCONV_STORE_IF

__device__ __forceinline__ void LoadFour(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address));
}

// The nearest tf32 number, because tensor cores truncate. Ties go to even from sm_90 on, before that away from zero.
__device__ __forceinline__ uint32_t RoundToTf32(float x) {
  uint32_t rounded;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));  // one instruction
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
#endif
  return rounded;
}

// The same, but a finite number never becomes infinity: if it is too large, it becomes the largest tf32 number. This
// takes more instructions.
__device__ __forceinline__ uint32_t RoundToFiniteTf32(float x) {
  constexpr uint32_t kTf32Bits = 0xffffe000;
  const uint32_t rounded = RoundToTf32(x);
  return isinf(__uint_as_float(rounded)) ? __float_as_uint(x) & kTf32Bits : rounded;
}

// mma: sum = before + a * b, for M = 16, N = 8 and 32 bytes of K. With g = lane / 4 and t = lane % 4, a lane has
//   a: rows g and g + 8 at byte 4t of K, then the same rows at byte 16 + 4t
//   b: column g at bytes 4t and 16 + 4t of K
//   sum: rows g and g + 8, each at columns 2t and 2t + 1. Sums of int8_t are int32_t.
template <typename T, typename Sum>
__device__ __forceinline__ void MultiplyAdd(Sum (&sum)[4], const Sum (&before)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1);

#define JAXCONV_MULTIPLY_ADD(T, SUM, REGISTER, SHAPE)                                                             \
  template <>                                                                                                     \
  __device__ __forceinline__ void MultiplyAdd<T>(SUM(&sum)[4], const SUM(&before)[4], const uint32_t (&a)[4],     \
                                                 uint32_t b0, uint32_t b1) {                                      \
    asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"          \
        : "=" REGISTER(sum[0]), "=" REGISTER(sum[1]), "=" REGISTER(sum[2]), "=" REGISTER(sum[3])                  \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), REGISTER(before[0]), REGISTER(before[1]), \
          REGISTER(before[2]), REGISTER(before[3]));                                                              \
  }
JAXCONV_MULTIPLY_ADD(__nv_bfloat16, float, "f", "m16n8k16.row.col.f32.bf16.bf16.f32")
JAXCONV_MULTIPLY_ADD(__half, float, "f", "m16n8k16.row.col.f32.f16.f16.f32")
JAXCONV_MULTIPLY_ADD(float, float, "f", "m16n8k8.row.col.f32.tf32.tf32.f32")
JAXCONV_MULTIPLY_ADD(int8_t, int32_t, "r", "m16n8k32.row.col.s32.s8.s8.s32")
#undef JAXCONV_MULTIPLY_ADD

// sum += a * b.
template <typename T, typename Sum>
__device__ __forceinline__ void MultiplyAdd(Sum (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MultiplyAdd<T>(sum, sum, a, b0, b1);
}

// The same for 16 bytes of K: with the first half of the registers of a and b.
template <typename T, typename Sum>
__device__ __forceinline__ void MultiplyAddHalf(Sum (&sum)[4], const Sum (&before)[4], const uint32_t (&a)[4],
                                                uint32_t b);

#define JAXCONV_MULTIPLY_ADD_HALF(T, SUM, REGISTER, SHAPE)                                                        \
  template <>                                                                                                     \
  __device__ __forceinline__ void MultiplyAddHalf<T>(SUM(&sum)[4], const SUM(&before)[4], const uint32_t (&a)[4], \
                                                     uint32_t b) {                                                \
    asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"                         \
        : "=" REGISTER(sum[0]), "=" REGISTER(sum[1]), "=" REGISTER(sum[2]), "=" REGISTER(sum[3])                  \
        : "r"(a[0]), "r"(a[1]), "r"(b), REGISTER(before[0]), REGISTER(before[1]), REGISTER(before[2]),            \
          REGISTER(before[3]));                                                                                   \
  }
JAXCONV_MULTIPLY_ADD_HALF(__nv_bfloat16, float, "f", "m16n8k8.row.col.f32.bf16.bf16.f32")
JAXCONV_MULTIPLY_ADD_HALF(__half, float, "f", "m16n8k8.row.col.f32.f16.f16.f32")
JAXCONV_MULTIPLY_ADD_HALF(float, float, "f", "m16n8k4.row.col.f32.tf32.tf32.f32")
JAXCONV_MULTIPLY_ADD_HALF(int8_t, int32_t, "r", "m16n8k16.row.col.s32.s8.s8.s32")
#undef JAXCONV_MULTIPLY_ADD_HALF

template <typename T, typename Sum>
__device__ __forceinline__ void MultiplyAddHalf(Sum (&sum)[4], const uint32_t (&a)[4], uint32_t b) {
  MultiplyAddHalf<T>(sum, sum, a, b);
}

}  // namespace jaxconv::ptx
