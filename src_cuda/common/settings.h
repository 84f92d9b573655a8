// How a kernel family is to run a call: a struct of named numbers a family. Programs carry them by their names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "common/reason.h"

namespace jaxconv {

// A setting's name and its place in a family's settings.
template <typename Settings>
struct Field {
  const char* name;
  int64_t Settings::* member;
};

using NamedSettings = std::map<std::string, int64_t>;

// Kernels count in 32 bits.
inline int32_t In32(int64_t n) {
  using Limits = std::numeric_limits<int32_t>;
  return static_cast<int32_t>(std::clamp<int64_t>(n, Limits::min(), Limits::max()));
}

template <typename Settings>
NamedSettings Named(const Settings& settings) {
  NamedSettings named;
  for (const auto& field : Settings::Fields()) named[field.name] = settings.*field.member;
  return named;
}

// Why no settings of a family are in `named`: each of its names must be there, and no other.
template <typename Settings>
Reason ReadSettings(const NamedSettings& named, Settings* settings) {
  for (const auto& field : Settings::Fields()) {
    const auto found = named.find(field.name);
    if (found == named.end()) return "the setting " + std::string(field.name) + " is missing";
    if (found->second != In32(found->second)) {
      return "the setting " + found->first + " is " + std::to_string(found->second) + ", beyond 32 bits";
    }
    settings->*field.member = found->second;
  }
  for (const auto& [name, value] : named) {
    bool is_known = false;
    for (const auto& field : Settings::Fields()) is_known |= name == field.name;
    if (!is_known) return "there is no setting " + name;
  }
  return std::nullopt;
}

}  // namespace jaxconv
