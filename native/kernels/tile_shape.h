// The shapes of matmul tiles that suit an instruction set's registers.
#pragma once

#include "../dtype.h"

namespace samovar {

struct TileShape {
  int few_rows;    // up to so many rows, several panels are streamed at once
  int stream_rows; // rows and panels of such a tile
  int stream_panels;
  int rows; // rows, panels and vectors of a panel of a tile for more rows
  int panels;
  int parts;
};

} // namespace samovar
