// Runner in Python: its arrays and what is checked of them before the GIL is released.
#include "bind.h"

#include "kv_cache.h"
#include "pool.h"
#include "program.h"
#include "runner.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

namespace samovar {
namespace {

using namespace nb::literals;

using FloatArray = Array<float>;
using IntArray = Array<int32_t>;

std::vector<int32_t> run(Runner& runner, const IntArray& tokens, const IntArray& positions,
                         const IntArray& seq_start, const IntArray& kv_len, const IntArray& block_table,
                         const IntArray& logit_rows) {
  const View t(tokens, "tokens"), p(positions, "positions"), s(seq_start, "seq_start"), k(kv_len, "kv_len"),
      b(block_table, "block_table", 2), l(logit_rows, "logit_rows");
  const nb::gil_scoped_release release;
  return runner.run({t.span(), p.span(), s.span(), k.span(), b.span(), b.shape(0), b.shape(1), l.span()});
}

NumpyArray<const float> logits(const nb::handle& self) {
  const auto& runner = nb::cast<const Runner&>(self);
  return NumpyArray<const float>(
      runner.logits(),
      {static_cast<size_t>(runner.max_logit_rows()), static_cast<size_t>(runner.logits_cols())}, self,
      {runner.logits_stride(), 1});
}

// The part of a list that `start` gives to each choice.
template <class T>
std::span<const T> slice(const View<int32_t>& start, const View<T>& values, size_t i, const char* name) {
  const int32_t begin = start.data()[i], end = start.data()[i + 1];
  check(begin >= 0 && begin <= end && end <= values.size(), name, ": ", begin, " to ", end, " at ", i,
        " is not in ", values.size(), " values");
  return values.span().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

template <class T> void length(const View<T>& view, const char* name, int64_t expected) {
  check(view.size() == expected, name, ": expected ", expected, " values, got ", view.size());
}

// Bias and masks, which most calls do without.
class Constraints {
public:
  Constraints(const std::optional<IntArray>& bias_start, const std::optional<IntArray>& bias_tokens,
              const std::optional<FloatArray>& bias_values, const std::optional<Array<uint32_t>>& mask,
              int64_t n, int vocab) {
    const bool biased = bias_start.has_value();
    check(bias_tokens.has_value() == biased && bias_values.has_value() == biased,
          "bias_start, bias_tokens and bias_values: expected all or none");
    if (biased) {
      length(start_.emplace(*bias_start, "bias_start"), "bias_start", n + 1);
      const int64_t size = tokens_.emplace(*bias_tokens, "bias_tokens").size();
      length(values_.emplace(*bias_values, "bias_values"), "bias_values", size);
    }
    if (mask) {
      const View<uint32_t>& view = mask_.emplace(*mask, "mask", 2);
      const int words = (vocab + 31) / 32;
      check(view.shape(0) == n && view.shape(1) == words, "mask: expected ", n, " x ", words, ", got ",
            view.shape(0), " x ", view.shape(1));
    }
  }

  void apply(size_t i, Choice& choice) const {
    if (start_) {
      choice.bias_tokens = slice(*start_, *tokens_, i, "bias_start");
      choice.bias_values = slice(*start_, *values_, i, "bias_start");
    }
    if (mask_)
      choice.mask = mask_->data() + static_cast<int64_t>(i) * mask_->shape(1);
  }

private:
  std::optional<View<int32_t>> start_, tokens_;
  std::optional<View<float>> values_;
  std::optional<View<uint32_t>> mask_;
};

std::vector<int32_t>
sample(Runner& runner, const IntArray& rows, const FloatArray& temperature, const FloatArray& top_p,
       const FloatArray& min_p, const FloatArray& repeat_penalty, const FloatArray& frequency_penalty,
       const FloatArray& presence_penalty, const IntArray& top_k, const Array<uint64_t>& seed,
       const Array<uint32_t>& choice, const IntArray& position, const IntArray& repeat_start,
       const IntArray& repeat_tokens, const IntArray& reply_start, const IntArray& reply_tokens,
       const std::optional<IntArray>& bias_start, const std::optional<IntArray>& bias_tokens,
       const std::optional<FloatArray>& bias_values, const std::optional<Array<uint32_t>>& mask) {
  const View row(rows, "rows"), k(top_k, "top_k"), at(position, "position");
  const View t(temperature, "temperature"), p(top_p, "top_p"), m(min_p, "min_p"),
      repeat(repeat_penalty, "repeat_penalty"), frequency(frequency_penalty, "frequency_penalty"),
      presence(presence_penalty, "presence_penalty");
  const View seeds(seed, "seed");
  const View number(choice, "choice");
  const View first_repeat(repeat_start, "repeat_start"), repeats(repeat_tokens, "repeat_tokens"),
      first_reply(reply_start, "reply_start"), replies(reply_tokens, "reply_tokens");
  const int64_t n = row.size();
  length(t, "temperature", n);
  length(p, "top_p", n);
  length(m, "min_p", n);
  length(repeat, "repeat_penalty", n);
  length(frequency, "frequency_penalty", n);
  length(presence, "presence_penalty", n);
  length(k, "top_k", n);
  length(seeds, "seed", n);
  length(number, "choice", n);
  length(at, "position", n);
  length(first_repeat, "repeat_start", n + 1);
  length(first_reply, "reply_start", n + 1);
  const Constraints constraints(bias_start, bias_tokens, bias_values, mask, n, runner.logits_cols());
  std::vector<Choice> choices;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    choices.push_back({.row = row.data()[i],
                       .temperature = t.data()[i],
                       .top_p = p.data()[i],
                       .min_p = m.data()[i],
                       .top_k = k.data()[i],
                       .repeat_penalty = repeat.data()[i],
                       .frequency_penalty = frequency.data()[i],
                       .presence_penalty = presence.data()[i],
                       .repeat_tokens = slice(first_repeat, repeats, i, "repeat_start"),
                       .reply_tokens = slice(first_reply, replies, i, "reply_start"),
                       .seed = seeds.data()[i],
                       .choice = number.data()[i],
                       .position = static_cast<uint32_t>(at.data()[i])});
    constraints.apply(i, choices.back());
  }
  std::vector<int32_t> tokens(choices.size());
  const nb::gil_scoped_release release;
  runner.sample(choices, tokens);
  return tokens;
}

using Logprobs3 = std::tuple<NumpyArray<float>, NumpyArray<int32_t>, NumpyArray<float>>;
Logprobs3 logprobs(Runner& runner, const IntArray& rows, const IntArray& tokens, int top) {
  const View row(rows, "rows"), token(tokens, "tokens");
  length(token, "tokens", row.size());
  check(top >= 0 && top <= kMaxTopLogprobs, "top: expected 0 to ", kMaxTopLogprobs, ", got ", top);
  const auto n = static_cast<size_t>(row.size()), width = static_cast<size_t>(top);
  std::vector<float> found(n), best(n * width);
  std::vector<int32_t> ids(n * width);
  {
    const nb::gil_scoped_release release;
    runner.logprobs(row.span(), token.span(), top, {found, ids, best});
  }
  return {make_array(std::move(found), {n}), make_array(std::move(ids), {n, width}),
          make_array(std::move(best), {n, width})};
}

nb::list profile(Runner& runner, std::optional<bool> enabled) {
  nb::list result;
  for (const Runner::Profile& p : runner.profile()) {
    nb::dict entry;
    entry["kind"] = *p.kind;
    entry["origin"] = *p.origin;
    entry["calls"] = p.calls;
    entry["ns"] = p.ns;
    result.append(entry);
  }
  if (enabled)
    runner.set_profiling(*enabled);
  return result;
}

} // namespace

void bind_runner(nb::module_& m) {
  nb::class_<Runner>(m, "Runner", "Replays a program, a step at a time; owns its activations.")
      .def(
          "__init__",
          [](Runner* self, std::shared_ptr<Program> program, std::shared_ptr<KvCache> cache,
             const KernelTable& kernels, std::shared_ptr<Pool> pool) {
            new (self) Runner(std::move(program), std::move(cache), *kernels.kernels, std::move(pool));
          },
          "program"_a, "kv_cache"_a, "kernels"_a, "pool"_a)
      .def(
          "run", &run, nb::kw_only(), "tokens"_a, "positions"_a, "seq_start"_a, "kv_len"_a, "block_table"_a,
          "logit_rows"_a,
          "Compute a step: sequence s has rows seq_start[s] to seq_start[s+1], its positions are "
          "consecutive\n"
          "and end at kv_len[s] - 1, its blocks are block_table[s].  logit_rows ascend.\n\n"
          "Everything is checked before anything is computed (ValueError).  Returns the rows, usually none,\n"
          "that met a value which is not finite.  Releases the GIL.")
      .def_prop_ro("logits", &logits,
                   nb::for_getter(nb::sig("def logits(self, /) -> numpy.typing.NDArray[numpy.float32]")),
                   "View [max_logit_rows, vocab]; the rows of the last run are valid.")
      .def("sample", &sample, nb::kw_only(), "rows"_a, "temperature"_a, "top_p"_a, "min_p"_a,
           "repeat_penalty"_a, "frequency_penalty"_a, "presence_penalty"_a, "top_k"_a, "seed"_a, "choice"_a,
           "position"_a, "repeat_start"_a, "repeat_tokens"_a, "reply_start"_a, "reply_tokens"_a,
           "bias_start"_a = nb::none(), "bias_tokens"_a = nb::none(), "bias_values"_a = nb::none(),
           "mask"_a = nb::none(),
           "One token for each of `rows` of the last run's logits, which may repeat and stay as they are.\n\n"
           "Order: logit bias, mask, penalties, temperature, top-k, min-p, top-p, one draw (Philox 4x32-10,\n"
           "key seed, counter position and choice).  Temperature 0: the most probable.  Tokens\n"
           "repeat_start[i] to repeat_start[i+1] of repeat_tokens are choice i's; so with reply_tokens and\n"
           "bias_tokens.  mask: [choices, ceil(vocab / 32)], bit t % 32 of word t // 32 allows token t; a\n"
           "choice whose mask allows none gets -1.  Releases the GIL.")
      .def("logprobs", &logprobs, nb::kw_only(), "rows"_a, "tokens"_a, "top"_a,
           "ln softmax of `rows` of the last run's logits: at `tokens` [n], and at the `top` (0 to 20) most\n"
           "probable ones, lower ids first on a tie.  Returns logprob [n], top_tokens [n, top],\n"
           "top_logprobs [n, top].  Releases the GIL.")
      .def("profile", &profile, "enabled"_a = nb::none(),
           nb::sig("def profile(self, enabled: bool | None = None) -> list[dict[str, object]]"),
           "Time by operation: kind, origin, calls, ns.  True starts measuring from zero, False stops.");
}

} // namespace samovar
