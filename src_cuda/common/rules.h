// The rules of a family. Planning and the handlers ask the same functions. Handlers also ask whether the stand-in takes
// a call. Host-only: without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"
#include "reason.h"

namespace jaxconv {

template <typename Settings>
struct Rules {
  // Why no GPU runs a call with the settings.
  Reason (*unsupported_reason)(const ConvProblem&, Pass, const Settings&);
  // Bytes of workspace for a supported call.
  size_t (*workspace_bytes)(const ConvProblem&, Pass, const Settings&);
  // Bytes of shared memory for a CTA.
  size_t (*shared_bytes)(const ConvProblem&, Pass, const Settings&);
};

// For a family whose conv has no split-K.
template <typename Settings>
Reason UnsupportedSplit(const Settings& s, Pass pass) {
  if (pass == Pass::kConv && s.split != 1) return "a split of " + std::to_string(s.split) + ": its conv has none";
  return UnsupportedSplit(s);
}

// What families have in common of sums of a gradient, see common/gradient_sums.h.
template <typename Settings>
Reason UnsupportedGradientSums(const ConvProblem& p, Pass pass, const Settings& s) {
  if (s.gradient_sums == 0) return std::nullopt;
  if (s.gradient_sums != 1) return "another number of sums of a gradient";
  if (pass != Pass::kWgrad) return "sums of a gradient, which convs do not have";
  if (ResultElements(p, pass) == 0) return "sums of a gradient beside an empty filter";
  if (TraitsOf(p.dst_type).bytes != 2) return "sums of a gradient of " + Name(p.dst_type);
  return p.class_count == 1 ? std::nullopt : Reason("sums of a gradient in residue classes");
}

// Why a family has no kernels of the types of a conv.
inline std::string NoKernelsOf(const ConvProblem& p) {
  std::string names;
  for (const std::string& name : std::set{Name(p.src_type), Name(p.filter_type), Name(p.dst_type)}) {
    names += (names.empty() ? "" : " and ") + name;
  }
  return "it has no kernels of " + names;
}

// Whether an activation of groups of one channel has its channels last, in whole vectors.
inline bool HasVectorsOfGroups(const TensorStrides& s, int64_t channels, int64_t vector) {
  return s.group == 1 && channels % vector == 0 && s.batch % vector == 0 && s.spatial[0] % vector == 0 &&
         s.spatial[1] % vector == 0 && s.spatial[2] % vector == 0;
}

// CTAs that compute so many tiles along M, with all tiles of `cols` columns.
inline int64_t GridBlocks(const ConvProblem& p, int64_t row_tiles, int64_t split, int cols) {
  return row_tiles * CeilDiv(p.out_channels, cols) * split * p.groups;
}

// CTAs that compute a product in tiles of rows x cols, with those that have none: see RowTiles.
inline int64_t GridBlocks(const ConvProblem& p, Pass pass, int64_t split, int rows, int cols) {
  return GridBlocks(p, RowTiles(p, Rows(p, pass), rows), split, cols);
}

}  // namespace jaxconv
