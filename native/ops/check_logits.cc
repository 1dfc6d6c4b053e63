#include "../program.h"
#include "ops.h"

namespace samovar {
namespace {

constexpr int kSlice = 16384; // columns of an item
constexpr uint32_t kInfinity = 0x7f800000;

class CheckLogits final : public Op {
public:
  CheckLogits(std::string origin, const Buffer& x) : Op("check_logits", std::move(origin)), x_(x) {}

  int64_t items(const Step& step, int) const noexcept override {
    return int64_t{step.num_rows(x_.rows)} * slices();
  }

  void run(const Step& step, int, int64_t item, uint8_t*) const noexcept override {
    const int row = static_cast<int>(item / slices());
    const int begin = static_cast<int>(item % slices()) * kSlice;
    const int end = std::min(begin + kSlice, x_.cols);
    if (!all_below(step.floats(x_, row) + begin, end - begin, kInfinity))
      step.mark_bad(x_.rows, row);
  }

private:
  int slices() const { return (x_.cols + kSlice - 1) / kSlice; }

  Buffer x_;
};

} // namespace

void add_check_logits(Program& program, CheckLogitsSpec spec) {
  Adding adding(program, "check_logits", std::move(spec.origin));
  const Buffer x = adding.input("x", spec.x, RowType::F32);
  adding.require(x.rows == RowKind::Logits, "x: expected rows \"logits\"");
  adding.finish(std::make_unique<CheckLogits>(adding.origin(), x));
}

} // namespace samovar
