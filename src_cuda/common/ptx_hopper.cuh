// Instructions that only Hopper has. They need code for sm_90a.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace jaxconv::ptx {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kIsHopper = true;
#define JAXCONV_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
inline constexpr bool kIsHopper = false;
#define JAXCONV_HOPPER_ASM(...)
#endif

// Makes this thread's writes to shared memory, also by cp.async, visible to wgmma, which reads shared memory through
// the asynchronous proxy.
__device__ __forceinline__ void FenceForTensorCores() {
  JAXCONV_HOPPER_ASM("fence.proxy.async.shared::cta;" :: : "memory");
}

__device__ __forceinline__ void WarpgroupArrive() { JAXCONV_HOPPER_ASM("wgmma.fence.sync.aligned;" :: : "memory"); }

__device__ __forceinline__ void WarpgroupCommit() {
  JAXCONV_HOPPER_ASM("wgmma.commit_group.sync.aligned;" :: : "memory");
}

// Behind a loop that waits, the compiler assumes that the lanes of a warp may be apart, and computes the descriptors of
// all later multiplications in each lane. An `aligned` instruction says that they are together; this one is cheap. It
// is for waits behind which no other such instruction follows.
__device__ __forceinline__ void ConvergeWarp() { WarpgroupArrive(); }

// Whether this is the warp's elected lane: always the same one. All lanes must call it. Unlike a comparison of lanes,
// it tells the compiler that one lane alone goes on, so that TMA's operands are uniform, and are not looped over by
// lanes.
__device__ __forceinline__ bool ElectOne() {
  uint32_t is_elected = 0;
  JAXCONV_HOPPER_ASM("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(is_elected));
  return is_elected != 0;
}

// One arrival for the whole warp. elect.sync needs no register for the lane.
__device__ __forceinline__ void ArriveOfWarp(uint32_t barrier) {
  JAXCONV_HOPPER_ASM(
      "{ .reg .pred p; .reg .b64 state; elect.sync _|p, 0xffffffff; @p mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
          barrier) : "memory");
}

// setmaxnreg: the registers of a thread of this warp group from here on. The kernel was launched with the same number
// for all.
template <int kRegisters>
__device__ __forceinline__ void IncreaseRegisters() {
  JAXCONV_HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void DecreaseRegisters() {
  JAXCONV_HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits until at most kPending committed groups of multiplications are pending.
template <int kPending>
__device__ __forceinline__ void WarpgroupWait() {
  JAXCONV_HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps reads of these registers after WarpgroupWait. wgmma writes them, but the wait does not name them, so the
// compiler does not know.
__device__ __forceinline__ void FenceOperand(float (&sum)[4]) {
  asm volatile("" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])::"memory");
}
__device__ __forceinline__ void FenceOperand(int32_t (&sum)[4]) {
  asm volatile("" : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])::"memory");
}

// wgmma: sum += a * b, or sum = a * b if not `adds`, for M = 64, N = kCols and 32 bytes of K. `a` and `b` are
// descriptors of matrices in shared memory. kTransposed: the matrix is MN-major, not K-major, as those of 16-bit types
// may be. float is multiplied as tf32, without its low bits. Warp w of the warp group has the rows 16 w to 16 w + 15.
// Among these, a lane has the rows and columns of ptx::MultiplyAdd. Of float and bfloat16 `a` may also be four
// registers, those of ptx::MultiplyAdd for the warp's 16 rows. Sums of int8_t are int32_t. Of float8, T is the type of
// `a`, and `b` is e4m3.
template <typename T, int kCols, bool kTransposedA, bool kTransposedB, typename OperandA = uint64_t, typename Sum>
__device__ __forceinline__ void WarpgroupMultiplyAdd(Sum (&sum)[kCols / 8][4], const OperandA& a, uint64_t b,
                                                     bool adds = true) {
// Assembly names its operands by numbers. With S = kCols / 2 sums, %0 to %(S - 1) are the sums, %S is the descriptor of
// B, %(S + 1) says whether to add, %(S + 2) and %(S + 3) whether A and B are transposed, and from %(S + 4) on there is
// A: a descriptor, or four registers. JAXCONV_SUMS_n has n fours of sums, JAXCONV_NAMES_n the numbers of n. Each begins
// with the next shorter one. JAXCONV_SIGNS: neither A nor B is negated. int8 has no such constants.
#define JAXCONV_REGISTER "+f"
#define JAXCONV_SIGNS ", 1, 1"
#define JAXCONV_SUM(j) \
  JAXCONV_REGISTER(sum[j][0]), JAXCONV_REGISTER(sum[j][1]), JAXCONV_REGISTER(sum[j][2]), JAXCONV_REGISTER(sum[j][3])
#define JAXCONV_SUMS_2 JAXCONV_SUM(0), JAXCONV_SUM(1)
#define JAXCONV_SUMS_4 JAXCONV_SUMS_2, JAXCONV_SUM(2), JAXCONV_SUM(3)
#define JAXCONV_SUMS_8 JAXCONV_SUMS_4, JAXCONV_SUM(4), JAXCONV_SUM(5), JAXCONV_SUM(6), JAXCONV_SUM(7)
#define JAXCONV_SUMS_12 JAXCONV_SUMS_8, JAXCONV_SUM(8), JAXCONV_SUM(9), JAXCONV_SUM(10), JAXCONV_SUM(11)
#define JAXCONV_SUMS_16 JAXCONV_SUMS_12, JAXCONV_SUM(12), JAXCONV_SUM(13), JAXCONV_SUM(14), JAXCONV_SUM(15)
#define JAXCONV_SUMS_18 JAXCONV_SUMS_16, JAXCONV_SUM(16), JAXCONV_SUM(17)
#define JAXCONV_SUMS_20 JAXCONV_SUMS_18, JAXCONV_SUM(18), JAXCONV_SUM(19)
#define JAXCONV_SUMS_24 JAXCONV_SUMS_20, JAXCONV_SUM(20), JAXCONV_SUM(21), JAXCONV_SUM(22), JAXCONV_SUM(23)
#define JAXCONV_SUMS_32                                                                                 \
  JAXCONV_SUMS_24, JAXCONV_SUM(24), JAXCONV_SUM(25), JAXCONV_SUM(26), JAXCONV_SUM(27), JAXCONV_SUM(28), \
      JAXCONV_SUM(29), JAXCONV_SUM(30), JAXCONV_SUM(31)
#define JAXCONV_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JAXCONV_NAMES_16 \
  JAXCONV_NAMES_8        \
  ", "                   \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define JAXCONV_NAMES_32 \
  JAXCONV_NAMES_16       \
  ", "                   \
  "%16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define JAXCONV_NAMES_48 \
  JAXCONV_NAMES_32       \
  ", "                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define JAXCONV_NAMES_64 \
  JAXCONV_NAMES_48       \
  ", "                   \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define JAXCONV_NAMES_72 \
  JAXCONV_NAMES_64       \
  ", "                   \
  "%64, %65, %66, %67, %68, %69, %70, %71"
#define JAXCONV_NAMES_80 \
  JAXCONV_NAMES_72       \
  ", "                   \
  "%72, %73, %74, %75, %76, %77, %78, %79"
#define JAXCONV_NAMES_96 \
  JAXCONV_NAMES_80       \
  ", "                   \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define JAXCONV_NAMES_128                                                                        \
  JAXCONV_NAMES_96                                                                               \
  ", "                                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define JAXCONV_DESCRIPTOR(A, ...) A
#define JAXCONV_REGISTERS(A, B, C, D) "{" A ", " B ", " C ", " D "}"
#define JAXCONV_TRANSPOSES(A, B) ", " A ", " B
#define JAXCONV_TRANSPOSE_OF_B(A, B) ", " B
#define JAXCONV_NO_TRANSPOSES(A, B) ""
#define JAXCONV_WGMMA(SHAPE, NAMES, SUMS, B, ADDS, TRANSPOSES, A, ...)                                       \
  JAXCONV_HOPPER_ASM("{ .reg .pred adds; setp.ne.b32 adds, " ADDS ", 0; wgmma.mma_async.sync.aligned." SHAPE \
                     " {" NAMES "}, " A ", " B ", adds" JAXCONV_SIGNS TRANSPOSES "; }" : SUMS : "l"(b),      \
                     "r"(static_cast<int>(adds)), "n"(static_cast<int>(kTransposedA)),                       \
                     "n"(static_cast<int>(kTransposedB)), __VA_ARGS__)
#define JAXCONV_WGMMA_OF(TYPE, TRANSPOSES, A, ...)                                                                \
  if constexpr (kCols == 16) {                                                                                    \
    JAXCONV_WGMMA("m64n16" TYPE, JAXCONV_NAMES_8, JAXCONV_SUMS_2, "%8", "%9", TRANSPOSES("%10", "%11"),           \
                  A("%12", "%13", "%14", "%15"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 32) {                                                                             \
    JAXCONV_WGMMA("m64n32" TYPE, JAXCONV_NAMES_16, JAXCONV_SUMS_4, "%16", "%17", TRANSPOSES("%18", "%19"),        \
                  A("%20", "%21", "%22", "%23"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 64) {                                                                             \
    JAXCONV_WGMMA("m64n64" TYPE, JAXCONV_NAMES_32, JAXCONV_SUMS_8, "%32", "%33", TRANSPOSES("%34", "%35"),        \
                  A("%36", "%37", "%38", "%39"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 96) {                                                                             \
    JAXCONV_WGMMA("m64n96" TYPE, JAXCONV_NAMES_48, JAXCONV_SUMS_12, "%48", "%49", TRANSPOSES("%50", "%51"),       \
                  A("%52", "%53", "%54", "%55"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 128) {                                                                            \
    JAXCONV_WGMMA("m64n128" TYPE, JAXCONV_NAMES_64, JAXCONV_SUMS_16, "%64", "%65", TRANSPOSES("%66", "%67"),      \
                  A("%68", "%69", "%70", "%71"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 144) {                                                                            \
    JAXCONV_WGMMA("m64n144" TYPE, JAXCONV_NAMES_72, JAXCONV_SUMS_18, "%72", "%73", TRANSPOSES("%74", "%75"),      \
                  A("%76", "%77", "%78", "%79"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 160) {                                                                            \
    JAXCONV_WGMMA("m64n160" TYPE, JAXCONV_NAMES_80, JAXCONV_SUMS_20, "%80", "%81", TRANSPOSES("%82", "%83"),      \
                  A("%84", "%85", "%86", "%87"), __VA_ARGS__);                                                    \
  } else if constexpr (kCols == 192) {                                                                            \
    JAXCONV_WGMMA("m64n192" TYPE, JAXCONV_NAMES_96, JAXCONV_SUMS_24, "%96", "%97", TRANSPOSES("%98", "%99"),      \
                  A("%100", "%101", "%102", "%103"), __VA_ARGS__);                                                \
  } else {                                                                                                        \
    static_assert(kCols == 256, "such a shape is not written here yet");                                          \
    JAXCONV_WGMMA("m64n256" TYPE, JAXCONV_NAMES_128, JAXCONV_SUMS_32, "%128", "%129", TRANSPOSES("%130", "%131"), \
                  A("%132", "%133", "%134", "%135"), __VA_ARGS__);                                                \
  }
  if constexpr (std::is_same_v<T, __nv_bfloat16> && !std::is_same_v<OperandA, uint64_t>) {
    static_assert(!kTransposedA);
    JAXCONV_WGMMA_OF("k16.f32.bf16.bf16", JAXCONV_TRANSPOSE_OF_B, JAXCONV_REGISTERS, "r"(a[0]), "r"(a[1]), "r"(a[2]),
                     "r"(a[3]))
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    JAXCONV_WGMMA_OF("k16.f32.bf16.bf16", JAXCONV_TRANSPOSES, JAXCONV_DESCRIPTOR, "l"(a))
  } else if constexpr (std::is_same_v<T, __half>) {
    JAXCONV_WGMMA_OF("k16.f32.f16.f16", JAXCONV_TRANSPOSES, JAXCONV_DESCRIPTOR, "l"(a))
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<OperandA, uint64_t>) {
    static_assert(!kTransposedA && !kTransposedB);
    JAXCONV_WGMMA_OF("k8.f32.tf32.tf32", JAXCONV_NO_TRANSPOSES, JAXCONV_DESCRIPTOR, "l"(a))
  } else if constexpr (std::is_same_v<T, float>) {
    static_assert(!kTransposedB);
    JAXCONV_WGMMA_OF("k8.f32.tf32.tf32", JAXCONV_NO_TRANSPOSES, JAXCONV_REGISTERS, "r"(a[0]), "r"(a[1]), "r"(a[2]),
                     "r"(a[3]))
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    static_assert(!kTransposedA && !kTransposedB);
    JAXCONV_WGMMA_OF("k32.f32.e4m3.e4m3", JAXCONV_NO_TRANSPOSES, JAXCONV_DESCRIPTOR, "l"(a))
  } else if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) {
    static_assert(!kTransposedA && !kTransposedB);
    JAXCONV_WGMMA_OF("k32.f32.e5m2.e4m3", JAXCONV_NO_TRANSPOSES, JAXCONV_DESCRIPTOR, "l"(a))
  } else {
    static_assert(std::is_same_v<T, int8_t> && !kTransposedA && !kTransposedB);
#undef JAXCONV_REGISTER
#define JAXCONV_REGISTER "+r"
#undef JAXCONV_SIGNS
#define JAXCONV_SIGNS ""
    JAXCONV_WGMMA_OF("k32.s32.s8.s8", JAXCONV_NO_TRANSPOSES, JAXCONV_DESCRIPTOR, "l"(a))
  }
#undef JAXCONV_REGISTER
#undef JAXCONV_SIGNS
#undef JAXCONV_SUM
#undef JAXCONV_SUMS_2
#undef JAXCONV_SUMS_4
#undef JAXCONV_SUMS_8
#undef JAXCONV_SUMS_12
#undef JAXCONV_SUMS_16
#undef JAXCONV_SUMS_18
#undef JAXCONV_SUMS_20
#undef JAXCONV_SUMS_24
#undef JAXCONV_SUMS_32
#undef JAXCONV_NAMES_8
#undef JAXCONV_NAMES_16
#undef JAXCONV_NAMES_32
#undef JAXCONV_NAMES_48
#undef JAXCONV_NAMES_64
#undef JAXCONV_NAMES_72
#undef JAXCONV_NAMES_80
#undef JAXCONV_NAMES_96
#undef JAXCONV_NAMES_128
#undef JAXCONV_DESCRIPTOR
#undef JAXCONV_REGISTERS
#undef JAXCONV_TRANSPOSES
#undef JAXCONV_TRANSPOSE_OF_B
#undef JAXCONV_NO_TRANSPOSES
#undef JAXCONV_WGMMA
#undef JAXCONV_WGMMA_OF
}

}  // namespace jaxconv::ptx
