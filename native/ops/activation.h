// What `gated` and `gated_linear` have in common.
#pragma once

#include "../program.h"

#include <optional>

namespace samovar {

enum class Activation { Silu, GeluTanh };

inline Activation checked_activation(const Adding& adding, std::string_view name) {
  adding.require(name == "silu" || name == "gelu_tanh", "activation: expected silu or gelu_tanh, got ", name);
  return name == "silu" ? Activation::Silu : Activation::GeluTanh;
}

inline auto gated_kernel(const Step& step, Activation activation) {
  return activation == Activation::Silu ? step.kernels->silu_mul : step.kernels->gelu_tanh_mul;
}

struct GatedOutputs {
  std::optional<Buffer> out, out_rows;
};

// One or both of them, with a row for each of x.
inline GatedOutputs gated_outputs(Adding& adding, int out, int out_rows, const Buffer& x, int cols) {
  adding.require(out != -1 || out_rows != -1, "neither out nor out_rows is given");
  GatedOutputs outputs;
  if (out != -1)
    outputs.out = adding.output("out", out, RowType::F32);
  if (out_rows != -1)
    outputs.out_rows = adding.rounded_output("out_rows", out_rows);
  for (const auto& [name, operand] : {std::pair{"out", outputs.out}, {"out_rows", outputs.out_rows}}) {
    if (!operand)
      continue;
    adding.same_rows(x, *operand);
    adding.columns(name, *operand, cols);
  }
  return outputs;
}

} // namespace samovar
