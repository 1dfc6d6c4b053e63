// The shapes of matmul tiles that suit an instruction set's registers.
#pragma once

#include "../dtype.h"

namespace samovar {

struct TileShape {
  int few_rows;    // up to so many rows, panels are streamed
  int stream_rows; // rows and panels of such a tile
  int stream_panels;
  int stream_ahead = 2048; // bytes before their use that the weights of each such stream are fetched
  int rows;                // rows, panels and vectors of a panel of a tile for more rows
  int panels;
  int parts;
  int ahead = 4096; // as stream_ahead, of a lone panel
  // Q8 rows only; 0: never.
  int slice_bytes = 0; // of the panels of a tile that several blocks of rows read in turn
  int unpack_rows = 0; // from so many rows, a slice of 5-bit codes is unpacked once for all
};

} // namespace samovar
