#include "../program.h"
#include "ops.h"

namespace samovar {
namespace {

class Rope final : public RowOp {
public:
  Rope(std::string origin, const Buffer& x, const Buffer& angles, int heads, int head_dim)
      : RowOp("rope", std::move(origin), x.rows, x.cols), x_(x), angles_(angles), heads_(heads),
        head_dim_(head_dim) {}

private:
  void run_row(const Step& step, int row, uint8_t*) const noexcept override {
    const int half = angles_.cols / 2;
    const float* cosines = step.floats(angles_, row);
    float* head = step.floats(x_, row);
    for (int h = 0; h < heads_; ++h, head += head_dim_)
      step.kernels->rope(head, cosines, cosines + half, half);
  }

  Buffer x_, angles_;
  int heads_, head_dim_;
};

} // namespace

void add_rope(Program& program, RopeSpec spec) {
  Adding adding(program, "rope", std::move(spec.origin));
  const Buffer x = adding.in_place("x", spec.x, RowType::F32);
  const Buffer angles = adding.input("angles", spec.angles, RowType::F32);
  adding.same_rows(x, angles);
  adding.require(spec.heads >= 1 && spec.head_dim >= 1, "heads and head_dim must be at least 1");
  adding.require(int64_t{spec.heads} * spec.head_dim <= x.cols, "x: ", spec.heads, " heads of ",
                 spec.head_dim, " do not fit into ", x.cols, " columns");
  adding.require(angles.cols % 2 == 0 && angles.cols <= spec.head_dim,
                 "angles: expected an even number of at most ", spec.head_dim, " columns, got ", angles.cols);
  adding.finish(std::make_unique<Rope>(adding.origin(), x, angles, spec.heads, spec.head_dim));
}

} // namespace samovar
