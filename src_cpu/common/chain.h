// Sums of floating-point numbers are sums of chains: rounding errors grow with the length of what is added one after
// the other.
#pragma once

#include <cstdint>
#include <type_traits>

namespace jaxconv::JAXCONV_ISA {
namespace {

// So many of k products are added one after the other, then a new chain begins. Integers do not round. Those who ask
// for float64 want small errors: they are least where there are about as many chains as products in one.
template <typename T>
int64_t ChainLength(int64_t k) {
  if constexpr (std::is_same_v<T, double>) return k <= 10 ? 5 : k <= 64 ? 8 : 16;
  else return std::is_integral_v<T> ? k : 64;
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
