// The settings of a kernel family say how it runs a call: a tile, which is an index of the family's table, and
// integers. Compiled programs carry the tile and the integers by name: other versions may have another table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "reason.h"

namespace jaxconv {

// A setting: its name, and its member of the struct.
template <typename Settings>
struct Field {
  const char* name;
  int64_t Settings::* member;
};

using NamedSettings = std::map<std::string, int64_t>;

// Clamps to 32 bits, in which kernels count.
inline int32_t In32(int64_t n) {
  using Limits = std::numeric_limits<int32_t>;
  return static_cast<int32_t>(std::clamp<int64_t>(n, Limits::min(), Limits::max()));
}

template <typename Settings>
bool HasSetting(const std::string& name) {
  return std::ranges::any_of(Settings::Fields(), [&](const auto& field) { return name == field.name; });
}

template <typename Settings>
NamedSettings Named(const Settings& settings) {
  NamedSettings named;
  for (const auto& field : Settings::Fields()) named[field.name] = settings.*field.member;
  return named;
}

// Fills in the settings of a family from a tile's name and from `named`, which must have each of their names and no
// other. Returns what is wrong with these.
template <typename Settings>
Reason ReadSettings(std::string_view tile, const NamedSettings& named, Settings* settings) {
  const auto& tiles = Settings::kTiles;
  const auto found_tile = std::ranges::find_if(tiles, [&](const auto& each) { return each.name() == tile; });
  if (found_tile == std::end(tiles)) return "there is no tile " + std::string(tile);
  settings->tile = found_tile - std::begin(tiles);
  for (const auto& field : Settings::Fields()) {
    const auto found = named.find(field.name);
    if (found == named.end()) return "the setting " + std::string(field.name) + " is missing";
    if (found->second != In32(found->second)) {
      return "the setting " + found->first + " is " + std::to_string(found->second) + ", beyond 32 bits";
    }
    settings->*field.member = found->second;
  }
  for (const auto& [name, value] : named) {
    if (!HasSetting<Settings>(name)) return "there is no setting " + name;
  }
  return std::nullopt;
}

}  // namespace jaxconv
