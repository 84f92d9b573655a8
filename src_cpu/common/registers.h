// The vector registers of the instruction sets that kernels are compiled for.
#pragma once

namespace jaxconv {

struct Registers {
  int vector_bytes;
  int tile_m;  // a matrix product's register tile is tile_m x up to two vectors: as many sums as registers
};

constexpr int kShortVectorBytes = 16;  // of the shortest vectors
constexpr Registers kAvx512{64, 12}, kAvx2{32, 6}, kNeon{16, 8}, kBaseline{16, 4};

}  // namespace jaxconv
