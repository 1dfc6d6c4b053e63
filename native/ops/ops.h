// The operations that a program is made of.  Each add_* checks its operands and appends; the order
// and roundings of the arithmetic are the kernels' contracts (kernels/kernels.h).
//
// Buffers are named by id; -1 stands for none where that is allowed.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace samovar {

class Program;
class Weight;

// out[t] = row tokens[t] of the weight * scale
struct EmbeddingSpec {
  int out;
  std::shared_ptr<const Weight> weight;
  float scale;
  std::string origin;
};
void add_embedding(Program& program, EmbeddingSpec spec);

// y = x / rms(x) * weight [+ add]; as f32 into `out`, as rounded rows into `out_rows`, or both
struct RmsNormSpec {
  int x;
  std::vector<float> weight; // empty: 1
  float eps;
  int add = -1;
  int out = -1;
  int out_rows = -1;
  std::string origin;
};
void add_rms_norm(Program& program, RmsNormSpec spec);

// f32 rows as q8 or bf16 rows
struct RoundRowsSpec {
  int x;
  int out;
  std::string origin;
};
void add_round_rows(Program& program, RoundRowsSpec spec);

// out[:, out_col : out_col + weight.rows] = x . weight^T [+ bias] [+ the same columns of add].  Of rows
// that need logits it marks the tokens that are not all finite
struct LinearSpec {
  int x;
  std::shared_ptr<const Weight> weight;
  int out;
  int out_col = 0;
  std::vector<float> bias; // empty: none
  int add = -1;
  std::string origin;
};
void add_linear(Program& program, LinearSpec spec);

// act(gate) * up of x . weight^T [+ bias], where gate and up alternate in the weight; as f32 into `out`, as
// rounded rows into `out_rows`, or both
struct GatedLinearSpec {
  int x;
  std::shared_ptr<const Weight> weight;
  std::string activation;  // silu, gelu_tanh
  std::vector<float> bias; // of gate, then of up; empty: none
  int out = -1;
  int out_rows = -1;
  std::string origin;
};
void add_gated_linear(Program& program, GatedLinearSpec spec);

// RMSNorm of each q head and each k head of q|k|v rows, in place
struct QkNormSpec {
  int x;
  std::vector<float> q_weight, k_weight;
  int heads, kv_heads, head_dim;
  float eps;
  std::string origin;
};
void add_qk_norm(Program& program, QkNormSpec spec);

// out[t] = cos(position * inv_freq) * scale, then the sines
struct RopeAnglesSpec {
  int out;
  std::vector<double> inv_freq;
  float scale;
  std::string origin;
};
void add_rope_angles(Program& program, RopeAnglesSpec spec);

// Rotates the first `heads` heads of each row in place, as far as the angles reach
struct RopeSpec {
  int x;
  int angles;
  int heads, head_dim;
  std::string origin;
};
void add_rope(Program& program, RopeSpec spec);

// Stores k and v of q|k|v rows in the cache, then attends causally; as f32 into `out`, as rounded rows
// into `out_rows`, or both
struct AttentionSpec {
  int x;
  int out = -1;
  int out_rows = -1;
  int layer, heads, kv_heads, head_dim;
  float scale;
  int window = 0; // tokens seen, the query's own included; 0: all
  std::string origin;
};
void add_attention(Program& program, AttentionSpec spec);

// act(gate) * up of gate|up rows; as f32 into `out`, as rounded rows into `out_rows`, or both
struct GatedSpec {
  int x;
  std::string activation; // silu, gelu_tanh
  int out = -1;
  int out_rows = -1;
  std::string origin;
};
void add_gated(Program& program, GatedSpec spec);

// The rows that need logits.  Marks the tokens whose f32 rows are not all finite
struct TakeLogitRowsSpec {
  int x;
  int out;
  std::string origin;
};
void add_take_logit_rows(Program& program, TakeLogitRowsSpec spec);

} // namespace samovar
