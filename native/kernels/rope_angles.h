// Angles of rotary position embedding.
#pragma once

namespace samovar {

// cos[i], sin[i] = scale * cos, sin of (position * inv_freq[i]), rounded once to float.
// For products up to a few million in magnitude; the same bits on every machine.
void rope_angles(const double* inv_freq, int n, int position, float scale, float* cos, float* sin);

} // namespace samovar
