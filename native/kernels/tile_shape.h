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
};

// What Q8 matmuls do with panels that several blocks of rows read; 0: nothing of the kind.
struct Q8Slices {
  int bytes = 0;       // of the panels of a tile: k is cut into slices of so many at most
  int scale_rows = 0;  // from so many rows, scales of U4k and U5k are made once for all
  int unpack_rows = 0; // from so many rows, codes of 5 and 6 bits and their scales, too
};

} // namespace samovar
