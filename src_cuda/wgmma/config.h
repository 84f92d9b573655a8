// The tiles of the wgmma family.
#pragma once

namespace jaxconv {

// A tile of the wgmma family, of which one or two warpgroups have equally many rows, or columns. Blocks of a cluster
// have neighbouring rows and share what they read of the filter, or neighbouring columns and share what they read of
// the source; or they have the slices of one tile's reduction, and add them.
struct WgmmaTile {
  int rows;
  int cols;
  int stages;
  int row_blocks;  // of a cluster
  int col_blocks;
  int resident;        // thread blocks of a multiprocessor
  bool boxed = false;  // pixels are copied once for all taps of a plane, for 8 x 8 positions, or 64 of a line
  int slices = 0;  // of a reduction, that the blocks of a cluster add: so many, or a part; 0: a second kernel adds them
  bool transposed = false;  // a multiplication's 64 rows are channels, and all of the tile's positions its columns

  constexpr int cluster() const { return row_blocks * col_blocks; }
  constexpr int warpgroups() const { return rows == 64 ? 1 : 2; }  // that multiply
};

inline constexpr WgmmaTile kWgmmaTiles[] = {
    {256, 128, 4, 2, 1, 1, false, 0, true},
    {128, 256, 4, 2, 1, 1},
    {256, 160, 3, 2, 1, 1},
    {192, 256, 3, 1, 1, 1, false, 0, true},
    {192, 128, 4, 1, 2, 1, false, 0, true},
    {128, 192, 4, 2, 1, 1},
    {128, 128, 6, 1, 2, 1},
    {128, 128, 3, 1, 1, 2},
    {256, 96, 4, 1, 1, 1},
    {256, 64, 4, 1, 1, 1},
    {256, 64, 2, 1, 1, 2},
    {128, 64, 4, 1, 1, 2},
    {256, 64, 5, 1, 1, 2, true},
    {256, 96, 4, 1, 1, 1, true},
    {256, 128, 4, 1, 1, 1, true},
    {128, 256, 4, 1, 1, 1, true},
    {64, 64, 5, 1, 1, 2, false, 8},
    {128, 256, 4, 1, 1, 1},
};

}  // namespace jaxconv
