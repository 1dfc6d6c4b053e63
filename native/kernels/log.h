// The logarithm, without libm.
#pragma once

namespace samovar {

// ln(x) of a normal positive number, within about 1 ulp.
double natural_log(double x);

} // namespace samovar
