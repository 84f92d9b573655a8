// A number that a call carries: of its problem and its settings together. Where windows lie and how far taps reach is
// in the offset tables, which handlers cannot read. So settings of another problem are found by this number.
#pragma once

#include <cstdint>
#include <span>

namespace jaxconv {

// FNV-1a, in steps of 64 bits.
inline int64_t FitDigest(std::span<const int64_t> numbers) {
  uint64_t digest = 14695981039346656037u;
  for (const int64_t number : numbers) digest = (digest ^ static_cast<uint64_t>(number)) * 1099511628211u;
  return static_cast<int64_t>(digest);
}

}  // namespace jaxconv
