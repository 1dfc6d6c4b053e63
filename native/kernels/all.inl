// Every inner loop over the vector type of the namespace that includes this, and the table of them.
#include "vector.inl"

#include "math.inl"

#include "rows.inl"

#include "matmul_common.inl"

#include "matmul_q8.inl"

#include "matmul_float.inl"

#include "kv_store.inl"

#include "attend.inl"

#include "peak.inl"

constexpr Kernels make_table(const char* name) {
  Kernels table{};
  table.name = name;
  table.matmul_bytes = 448 << 10; // measured on a Zen 5, whose cores have 1 MB of L2
#define SAMOVAR_FORM(form, function) table.matmul[static_cast<int>(Form::form)] = function;
#include "kernels.inc"
#define SAMOVAR_KERNEL(function) table.function = function;
#include "kernels.inc"
  table.attend[static_cast<int>(KvType::F32)] = attend<KvType::F32>;
  table.attend[static_cast<int>(KvType::BF16)] = attend<KvType::BF16>;
  table.attend[static_cast<int>(KvType::Q8)] = attend<KvType::Q8>;
  table.kv_store[static_cast<int>(KvType::F32)] = kv_store_f32;
  table.kv_store[static_cast<int>(KvType::BF16)] = kv_store_bf16;
  table.kv_store[static_cast<int>(KvType::Q8)] = kv_store_q8;
  table.peak[static_cast<int>(RowType::F32)] = peak_f32;
  table.peak[static_cast<int>(RowType::Q8)] = peak_q8;
  table.peak[static_cast<int>(RowType::BF16)] = peak_f32; // bf16 is widened
  table.peak_scaled = peak_scaled;
  return table;
}
