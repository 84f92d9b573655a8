// What the handlers give to a kernel: the operands of one call, and threads.
#pragma once

#include <cstdint>

#include "conv_epilogue.h"
#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv {

// The operands of one call. The right-hand side is the filter in a conv and the destination's gradient in a wgrad.
struct ConvCall {
  const ConvProblem& problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* result;
  Epilogue epilogue;  // of a conv
};

// Who runs a parallel loop. Plain pointers, because kernels compiled for a newer instruction set must not instantiate
// code that the linker could merge with the baseline's.
class Workers {
 public:
  using Body = void (*)(const void* context, int64_t worker, int64_t item);
  using Run = void (*)(void* pool, int64_t threads, int64_t items, Body body, const void* context);

  Workers(void* pool, int64_t threads, Run run) : pool_(pool), threads_(threads), run_(run) {}

  int64_t threads() const { return threads_; }

  // Calls body(worker, item) for every item, with worker < threads(). `work` is about the number of multiply-adds in
  // all: waking a thread costs as much as many of them.
  template <typename F>
  void For(int64_t items, double work, const F& body) const {
    constexpr double kWorkPerThread = 2e5;
    const double worth = 1 + work / kWorkPerThread;
    run_(
        pool_, worth < threads_ ? static_cast<int64_t>(worth) : threads_, items,
        [](const void* context, int64_t worker, int64_t item) { (*static_cast<const F*>(context))(worker, item); },
        &body);
  }

 private:
  void* pool_;
  int64_t threads_;
  Run run_;
};

// One pass of a family. It may throw std::bad_alloc, before it has started any thread.
// Operands are all floating or all integer.
using Kernel = void(const ConvCall& call, const Workers& workers);

}  // namespace jaxconv
