// Planning of a kernel family: which settings of a tile support a problem, why others do not, and their estimated time.
//
// Host-only: without CUDA. planning.cc exposes it to Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/product.h"
#include "common/settings.h"
#include "common/types.h"
#include "conv_problem.h"
#include "matrix_product.h"
#include "reason.h"

namespace jaxconv {

// The fields of a tile by name, for `explain` and tests.
using TileFields = std::map<std::string, int64_t>;

// Fitted costs by name.
class Numbers {
 public:
  explicit Numbers(std::map<std::string, double> numbers) : numbers_(std::move(numbers)) {}

  double operator[](const std::string& name) const {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) throw std::out_of_range("the device's data have no " + name);
    return found->second;
  }

 private:
  std::map<std::string, double> numbers_;
};

// A GPU, and the costs that were fitted to measurements on it.
struct Device {
  int64_t multiprocessors;
  double clock_hz;
  double bandwidth;      // bytes/s
  double cached_bytes;   // of activations that are still in L2 when they are read again
  int64_t shared_bytes;  // the most for a CTA
  bool wgmma;
  // Of a multiprocessor, in a clock. Fitted efficiencies and clocks refer to them.
  double float32_fmas_per_clock;       // multiply-adds of CUDA cores
  double other_fmas_per_clock;         // of float64 and int32
  double tensor_core_bytes_per_clock;  // multiply-adds of tensor cores at their peak, times the bytes of an element
  double shared_bytes_per_clock;       // that shared memory gives

  double launch_seconds;                 // that a call's first kernel takes besides its work
  double next_kernel_seconds;            // and each further one
  double next_group_seconds;             // until the kernel of the next group runs
  std::map<std::string, Numbers> costs;  // by family

  const Numbers& CostsOf(const std::string& family) const {
    const auto found = costs.find(family);
    if (found == costs.end()) throw std::out_of_range("the device's data have no costs of " + family);
    return found->second;
  }
};

// For families that take neither groups of images nor arrays without elements.
inline Reason UnsupportedArrays(const Product& product) {
  const auto is_empty = [](const ArrayShape& array) { return std::ranges::count(array.sizes, 0) > 0; };
  if (product.src_batch_grouped || product.dst_batch_grouped) return "groups of images";
  const bool is_any_empty = is_empty(product.src) || is_empty(product.filter) || is_empty(product.dst);
  return is_any_empty ? Reason("nothing is to be computed") : std::nullopt;
}

// Settings that the user requests, by name. The planner chooses the others.
struct Requested {
  std::map<std::string, int64_t> settings;

  std::optional<int64_t> Find(const std::string& name) const {
    const auto found = settings.find(name);
    return found == settings.end() ? std::nullopt : std::optional(found->second);
  }
};

}  // namespace jaxconv
