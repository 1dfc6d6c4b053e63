#include "../kernels/rope_angles.h"

#include "../program.h"
#include "ops.h"

#include <cmath>

namespace samovar {
namespace {

class RopeAngles final : public RowOp {
public:
  RopeAngles(std::string origin, const Buffer& out, std::vector<double> inv_freq, float scale)
      : RowOp("rope_angles", std::move(origin), out.rows, out.cols), out_(out),
        inv_freq_(std::move(inv_freq)), scale_(scale) {}

private:
  void run_row(const Step& step, int row, uint8_t*) const noexcept override {
    const auto n = static_cast<int>(inv_freq_.size());
    float* cosines = step.floats(out_, row);
    rope_angles(inv_freq_.data(), n, step.positions[static_cast<size_t>(row)], scale_, cosines, cosines + n);
  }

  Buffer out_;
  std::vector<double> inv_freq_;
  float scale_;
};

} // namespace

void add_rope_angles(Program& program, RopeAnglesSpec spec) {
  Adding adding(program, "rope_angles", std::move(spec.origin));
  const Buffer out = adding.output("out", spec.out, RowType::F32);
  adding.tokens_only("out", out);
  adding.require(!spec.inv_freq.empty(), "inv_freq: at least one is needed");
  for (const double f : spec.inv_freq)
    adding.require(std::isfinite(f) && std::abs(f) <= 1e3, "inv_freq: ", f, " is out of range");
  adding.columns("out", out, 2 * static_cast<int64_t>(spec.inv_freq.size()));
  adding.finish(std::make_unique<RopeAngles>(adding.origin(), out, std::move(spec.inv_freq), spec.scale));
}

} // namespace samovar
