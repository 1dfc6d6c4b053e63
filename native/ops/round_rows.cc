#include "../program.h"
#include "ops.h"

namespace samovar {
namespace {

class RoundRows final : public RowOp {
public:
  RoundRows(std::string origin, const Buffer& x, const Buffer& out)
      : RowOp("round_rows", std::move(origin), x.rows, x.cols), x_(x), out_(out) {}

private:
  void run_row(const Step& step, int row, uint8_t*) const noexcept override {
    write_rounded(step, step.floats(x_, row), out_, row);
  }

  Buffer x_, out_;
};

} // namespace

void add_round_rows(Program& program, RoundRowsSpec spec) {
  Adding adding(program, "round_rows", std::move(spec.origin));
  const Buffer x = adding.input("x", spec.x, RowType::F32);
  const Buffer out = adding.rounded_output("out", spec.out);
  adding.same_rows(x, out);
  adding.columns("out", out, x.cols);
  adding.finish(std::make_unique<RoundRows>(adding.origin(), x, out));
}

} // namespace samovar
