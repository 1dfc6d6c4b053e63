// Checks of what callers hand in.
#pragma once

#include <sstream>
#include <stdexcept>

namespace samovar {

// Throws std::invalid_argument, Python's ValueError, with the parts joined to one message.
template <class... Parts> void check(bool ok, const Parts&... parts) {
  if (ok) [[likely]]
    return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

} // namespace samovar
