// A pass, and how a kernel family is to run it. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "conv_problem.h"

namespace jaxconv {

// The two products of conv_problem.h.
enum class Pass { kConv, kWgrad };

// Of the direct family: the output positions that a thread block computes at a time, rows by columns; the source pixels
// that they read, in the class that reads most; the taps of the class that has most.
struct Area {
  int32_t rows;
  int32_t cols;
  int32_t box[kSpatial];
  int32_t taps;
  int32_t walk;  // rows, a dilation apart, that a warp takes one after the other; 1: it takes all at once
  int32_t run;   // taps of a row, if the source is read in runs, and box[2] is of pieces of eight elements; else 0
  int32_t corner[kSpatial];  // of a wgrad, the first class's: its taps' least shifts, with which boxes begin
};

// Of the depthwise family: a thread block's tile, along which the rows of the source pass by.
struct Stream {
  int32_t rows;      // of the destination, in positions of a residue class
  int32_t cols;      // of each image's row: whole strips
  int32_t channels;  // of a thread block
  int32_t images;    // of a tile, or planes of volumes; 0: all images' rows follow each other as one's, where no tap
                     // leaves its row
  int32_t first[kSpatial];   // source depth, row and column of the first position's first tap
  int32_t pieces[kSpatial];  // of the window, along each dimension
  int32_t apart[2];          // rows, and columns, from one to the next of a tile, as between taps of a dilated window
};

// Of the wgmma family: where TMA's im2col mode finds the source's pixels and the filter's taps.
struct Im2col {
  int32_t corner[kSpatial];  // the first window's, of the residue classes' the lowest: a tap's shift is no less
  int32_t rank;              // of the maps: two more than the last spatial dimensions, of which they have so many
  int32_t tap_stride;        // elements of the filter from a tap to the next
  int32_t reach[2];          // rows and columns from the corner to the last tap's pixel
  int32_t empty_classes;     // that have positions, but no taps
};

// How a family is to run a call. With split > 1 the reduction is cut into that many slices, each summed into its own
// part of the scratch, and a second kernel adds the slices in order; or, of some tiles of wgmma, a cluster adds them.
struct Plan {
  int tile;  // index into the family's table
  int split;
  int64_t chunk;      // im2col: rows of the column matrix that are in the scratch at a time; 0 elsewhere
  int units;          // mma: tiles of columns that a block computes in turn; 0: as many as suit the device
  int32_t shape[12];  // direct: an Area; depthwise: a Stream; wgmma: an Im2col; mma: its merged classes; else zeros

  // Of a conv by mma: residue classes whose columns follow each other in one matrix, as they read the same source
  // pixels. All, or 1.
  int merged() const { return std::max(1, shape[0]); }
  Area area() const {
    return {shape[0], shape[1], {shape[2], shape[3], shape[4]}, shape[5],
            shape[6], shape[7], {shape[8], shape[9], shape[10]}};
  }
  Im2col im2col() const { return {{shape[0], shape[1], shape[2]}, shape[3], shape[4], {shape[5], shape[6]}, shape[7]}; }
  Stream stream() const {
    return {shape[0],
            shape[1],
            shape[2],
            shape[3],
            {shape[4], shape[5], shape[6]},
            {shape[7], shape[8], shape[9]},
            {shape[10], shape[11]}};
  }
  void SetStream(const Stream& s) {
    int i = 0;
    for (const int32_t number : {s.rows, s.cols, s.channels, s.images}) shape[i++] = number;
    for (const int32_t number : s.first) shape[i++] = number;
    for (const int32_t number : s.pieces) shape[i++] = number;
    for (const int32_t number : s.apart) shape[i++] = number;
  }
};

}  // namespace jaxconv
