// The tile loops of the backends `carried` and `stacked`: strips of query rows, heads in parallel, float32 inside.
//
// Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
// A strip's scores (rows, width) lie contiguously; _tiling.py says where, and the two must agree.
// A coefficient is one number for all heads, or one for each.

#include "matrices.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using OptionalTensor = std::optional<Tensor>;

constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

// A single row times a matrix is bound by memory and by the cost of the call: plain loops beat the library.
bool single_row(int64_t rows, int64_t size) { return rows == 1 && size % Vec::size() == 0; }

// c (n) = alpha b (n, size) a (size) + beta c
void row_by_rows(int64_t n, int64_t size, float alpha, const float* a, Matrix b, float beta, float* c) {
  for (int64_t j = 0; j < n; ++j) {
    const float* other = b.data + j * b.ld;
    Vec even(0.0f), odd(0.0f);
    int64_t d = 0;
    for (; d + 2 * Vec::size() <= size; d += 2 * Vec::size()) {
      even = at::vec::fmadd(Vec::loadu(a + d), Vec::loadu(other + d), even);
      odd = at::vec::fmadd(Vec::loadu(a + d + Vec::size()), Vec::loadu(other + d + Vec::size()), odd);
    }
    if (d < size) even = at::vec::fmadd(Vec::loadu(a + d), Vec::loadu(other + d), even);
    const float product = alpha * at::vec::vec_reduce_all<float>([](Vec& x, Vec& y) { return x + y; }, even + odd);
    c[j] = beta == 0.0f ? product : beta * c[j] + product;
  }
}

// c (size) = a (n) b (n, size)
void row_by_columns(int64_t n, int64_t size, const float* a, Matrix b, float* c) {
  constexpr int lanes = 8;  // vectors of sums kept in registers
  for (int64_t start = 0; start < size; start += lanes * Vec::size()) {
    const int used = static_cast<int>(std::min<int64_t>(lanes, (size - start) / Vec::size()));
    Vec sums[lanes];
    for (Vec& sum : sums) sum = Vec(0.0f);
    for (int64_t j = 0; j < n; ++j) {
      const Vec weight(a[j]);
      const float* row = b.data + j * b.ld + start;
      if (used == lanes) {
        for (int i = 0; i < lanes; ++i) sums[i] = at::vec::fmadd(weight, Vec::loadu(row + i * Vec::size()), sums[i]);
      } else {
        for (int i = 0; i < used; ++i) sums[i] = at::vec::fmadd(weight, Vec::loadu(row + i * Vec::size()), sums[i]);
      }
    }
    for (int i = 0; i < used; ++i) sums[i].store(c + start + i * Vec::size());
  }
}

// Scores of a strip: c (m, n) = alpha a (m, size) b (n, size)^T + beta c
void scores_of(int64_t m, int64_t n, int64_t size, float alpha, Matrix a, Matrix b, float beta, MutableMatrix c) {
  if (single_row(m, size)) return row_by_rows(n, size, alpha, a.data, b, beta, c.data);
  product(Op::plain, Op::transposed, m, n, size, alpha, a, b, beta, c);
}

// Values read by a strip: c (m, size) = a (m, n) b (n, size)
void read_values(int64_t m, int64_t size, int64_t n, Matrix a, Matrix b, MutableMatrix c) {
  if (single_row(m, size)) return row_by_columns(n, size, a.data, b, c.data);
  product(Op::plain, Op::plain, m, size, n, 1.0f, a, b, 0.0f, c);
}

// Gradients of keys and values from a strip: c (n, size) = alpha a (m, n)^T b (m, size) + beta c
void gather(int64_t n, int64_t size, int64_t m, float alpha, Matrix a, Matrix b, float beta, MutableMatrix c) {
  product(Op::transposed, Op::plain, n, size, m, alpha, a, b, beta, c);
}

struct Mask {  // of one row
  const void* data = nullptr;
  int64_t stride = 1;
  bool boolean = false;

  // seen[j] = scores[j] with the mask applied
  void apply(const float* scores, float* seen, int64_t n) const {
    if (boolean) {
      const bool* visible = static_cast<const bool*>(data);
      for (int64_t j = 0; j < n; ++j) seen[j] = visible[j * stride] ? scores[j] : -INF;
    } else {
      const float* added = static_cast<const float*>(data);
      for (int64_t j = 0; j < n; ++j) seen[j] = scores[j] + added[j * stride];
    }
  }
};

// h += keep * old, and the largest entry, in one pass
float inherit_and_max(float* h, const float* old, float keep, int64_t n) {
  Vec best(-INF), factor(keep);
  by_vectors(n, [&](int64_t j, int count) {
    const Vec value = at::vec::fmadd(factor, load(old + j, count), load(h + j, count));
    value.store(h + j, count);
    best = at::vec::maximum(best, or_else(value, -INF, count));
  });
  return largest(best);
}

// x = cap tanh(x / cap)
void cap_row(float* x, float cap, int64_t n) {
  const Vec bound(cap), inverse(1.0f / cap);
  by_vectors(n, [&](int64_t j, int count) { (bound * (load(x + j, count) * inverse).tanh()).store(x + j, count); });
}

// gradient *= d cap tanh(s / cap) / ds = 1 - (x / cap)^2, with x the capped score
void cap_row_backward(const float* x, float* gradient, float cap, int64_t n) {
  const Vec inverse(1.0f / cap), one(1.0f);
  by_vectors(n, [&](int64_t j, int count) {
    const Vec ratio = load(x + j, count) * inverse;
    (load(gradient + j, count) * (one - ratio * ratio)).store(gradient + j, count);
  });
}

float exp_and_sum(const float* x, float* weights, float max, int64_t n) {
  Vec sum(0.0f), shift(max);
  by_vectors(n, [&](int64_t j, int count) {
    const Vec value = (load(x + j, count) - shift).exp_u20();
    value.store(weights + j, count);
    sum = sum + or_else(value, 0.0f, count);
  });
  return total(sum);
}

// Scores in two bytes: H in float16, saturating, and its gradient in bfloat16 in the same memory. See _storage.py.

using at::BFloat16;
using at::Half;

inline Vec saturated(const Vec& x) {  // what is infinite stays so, and NaN
  constexpr float most = 65504.0f;
  return Vec::blendv(at::vec::clamp(x, Vec(-most), Vec(most)), x, x.abs() == Vec(INF));
}

// x = the float16 next to x + keep * old, which is stored as well; the softmax sees what is stored
void inherit_and_store(float* x, const Half* old, float keep, Half* stored, int64_t n) {
  using Halves = at::vec::Vectorized<Half>;
  const Vec factor(keep);
  int64_t j = 0;
  for (; j + Halves::size() <= n; j += Halves::size()) {
    Vec a = Vec::loadu(x + j), b = Vec::loadu(x + j + Vec::size());
    if (old) {
      const auto [c, d] = at::vec::convert_to_float<Half>(Halves::loadu(old + j));
      a = at::vec::fmadd(factor, c, a);
      b = at::vec::fmadd(factor, d, b);
    }
    const Halves rounded = at::vec::convert_from_float<Half>(saturated(a), saturated(b));
    rounded.store(stored + j);
    const auto [c, d] = at::vec::convert_to_float<Half>(rounded);
    c.store(x + j);
    d.store(x + j + Vec::size());
  }
  for (; j < n; ++j) {
    const float value = old ? std::fma(keep, static_cast<float>(old[j]), x[j]) : x[j];
    stored[j] = std::isinf(value) ? value : std::min(std::max(value, -65504.0f), 65504.0f);
    if (std::isnan(value)) stored[j] = NOT_A_NUMBER;
    x[j] = stored[j];
  }
}

template <typename T>
void widen(const T* from, float* to, int64_t n) {
  using Narrow = at::vec::Vectorized<T>;
  int64_t j = 0;
  for (; j + Narrow::size() <= n; j += Narrow::size()) {
    const auto [a, b] = at::vec::convert_to_float<T>(Narrow::loadu(from + j));
    a.store(to + j);
    b.store(to + j + Vec::size());
  }
  for (; j < n; ++j) to[j] = from[j];
}

void narrow(const float* from, BFloat16* to, int64_t n) {
  using Narrow = at::vec::Vectorized<BFloat16>;
  int64_t j = 0;
  for (; j + Narrow::size() <= n; j += Narrow::size()) {
    at::vec::convert_from_float<BFloat16>(Vec::loadu(from + j), Vec::loadu(from + j + Vec::size())).store(to + j);
  }
  for (; j < n; ++j) to[j] = from[j];
}

// The hash of _dropout.py: both must drop the same weights.

inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

struct Dropout {
  double p;
  int64_t seed;

  bool on() const { return p > 0.0; }

  void factors(int64_t row, float* out, int64_t n) const {
    const auto low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
    const uint32_t key = mix(mix(static_cast<uint32_t>(row) ^ low) ^ high);
    const double bound = std::nearbyint(p * 4294967296.0);
    const uint32_t threshold = bound >= 4294967295.0 ? 0xFFFFFFFFu : static_cast<uint32_t>(bound);
    const float survivor = p >= 1.0 ? 0.0f : static_cast<float>(1.0 / (1.0 - p));
    for (int64_t j = 0; j < n; ++j) {
      const uint32_t chance = mix((static_cast<uint32_t>(j) * 0x9E3779B9u) ^ key);
      out[j] = chance >= threshold ? survivor : 0.0f;
    }
  }
};

struct SoftmaxSettings {
  OptionalTensor mask;  // expanded to (B, H, Q, K), bool or float
  bool causal;
  Dropout dropout;

  Mask mask_row(int64_t b, int64_t h, int64_t row) const {
    if (!mask) return {};
    const int64_t place = b * mask->stride(0) + h * mask->stride(1) + row * mask->stride(2);
    const char* data = static_cast<const char*>(mask->const_data_ptr());
    return {data + place * mask->element_size(), mask->stride(3), mask->scalar_type() == at::kBool};
  }
};

struct RowPosition {  // of one row
  int64_t b, h, row;
  int64_t drop_row;  // counted over batch and heads
  int64_t seen;      // keys up to here, of `width` in the strip
  int64_t width;
};

// Softmax of a row without its division: weights, their sum's inverse, and log-sum-exp (+inf where no key is seen).
void softmax_row(
    float* h, const float* old, float keep, float* weights, float* factors, const RowPosition& at,
    const SoftmaxSettings& softmax, float& inverse, float& logsumexp) {
  const int64_t n = at.seen;
  float max = old ? inherit_and_max(h, old, keep, n) : (softmax.mask ? 0.0f : row_max(h, n));
  const float* x = h;
  if (softmax.mask) {
    softmax.mask_row(at.b, at.h, at.row).apply(h, weights, n);
    max = row_max(weights, n);
    x = weights;
  }
  std::fill(h + n, h + at.width, -INF);  // later keys: never computed
  std::fill(weights + n, weights + at.width, 0.0f);
  if (max == -INF) {
    std::fill(weights, weights + n, 0.0f);
    inverse = 0.0f;
    logsumexp = INF;
    return;
  }
  if (!(max < INF)) {  // exp_u20 does not pass NaN on
    std::fill(weights, weights + n, NOT_A_NUMBER);
    inverse = logsumexp = NOT_A_NUMBER;
    return;
  }
  const float sum = exp_and_sum(x, weights, max, n);
  inverse = 1.0f / sum;
  logsumexp = max + std::log(sum);
  if (softmax.dropout.on()) {
    softmax.dropout.factors(at.drop_row, factors, n);
    by_vectors(n, [&](int64_t j, int count) {
      (load(weights + j, count) * load(factors + j, count)).store(weights + j, count);
    });
  }
}

// Gradient of a row of scores. `gradient` holds that of the weights and becomes that of the scores; `weights` is made.
void softmax_row_backward(
    const float* h, const float* carried, float* weights, float* gradient, float* factors, float* inherited, float keep,
    const RowPosition& at, const SoftmaxSettings& softmax, float logsumexp, float row_sum) {
  const int64_t n = at.seen;
  const float* x = h;
  if (softmax.mask) {
    softmax.mask_row(at.b, at.h, at.row).apply(h, weights, n);
    x = weights;
  }
  const bool dropped = softmax.dropout.on();
  if (dropped) softmax.dropout.factors(at.drop_row, factors, n);
  const bool blind = logsumexp == INF, broken = std::isnan(logsumexp);
  const Vec shift(logsumexp), mean(row_sum), scale(keep);
  by_vectors(n, [&](int64_t j, int count) {
    Vec weight = blind ? Vec(0.0f) : broken ? Vec(NOT_A_NUMBER) : (load(x + j, count) - shift).exp_u20();
    Vec change = load(gradient + j, count), kept = weight;
    if (dropped) {
      const Vec factor = load(factors + j, count);
      change = change * factor;
      kept = weight * factor;
    }
    change = weight * (change - mean);
    if (carried) change = change + load(carried + j, count);
    kept.store(weights + j, count);
    change.store(gradient + j, count);
    if (inherited) (change * scale).store(inherited + j, count);
  });
  std::fill(weights + n, weights + at.width, 0.0f);
  std::fill(gradient + n, gradient + at.width, 0.0f);
  if (inherited) std::fill(inherited + n, inherited + at.width, 0.0f);
}

MutableMatrix mutable_head(const Tensor& t, int64_t b, int64_t h) {
  return {t.mutable_data_ptr<float>() + b * t.stride(0) + h * t.stride(1), leading(t)};
}

// (B, H, T, D) with heads next to each other in memory: merging them again costs a model nothing
Tensor tokens_first(const Tensor& like, int64_t heads, int64_t tokens, int64_t size) {
  return at::empty({like.size(0), tokens, heads, size}, like.options().dtype(at::kFloat)).transpose(1, 2);
}

Tensor gradient_like(const Tensor& t) { return at::empty_like(t, t.options(), at::MemoryFormat::Preserve); }

Tensor sum_groups(const Tensor& t, int64_t groups) {  // (B, H, T, D) -> (B, G, T, D)
  if (t.size(1) == groups) return t;
  return at::sum(t.unflatten(1, {groups, t.size(1) / groups}), {2});
}

SoftmaxSettings make_settings(
    const OptionalTensor& mask, const Tensor& q, int64_t keys, bool causal, double p, int64_t seed) {
  SoftmaxSettings softmax{std::nullopt, causal, {p, seed}};
  if (mask) {
    const Tensor wide = mask->scalar_type() == at::kBool ? *mask : mask->to(at::kFloat);
    softmax.mask = wide.expand({q.size(0), q.size(1), q.size(2), keys});
  }
  return softmax;
}

struct Strips {  // where the strips of one head lie; `ScoreLayout` of _tiling.py
  int64_t queries, keys, tile;
  bool causal;

  int64_t count() const { return (queries + tile - 1) / tile; }
  int64_t first(int64_t i) const { return i * tile; }
  int64_t rows(int64_t i) const { return std::min(tile, queries - i * tile); }
  int64_t width(int64_t i) const { return causal ? first(i) + rows(i) : keys; }
  int64_t offset(int64_t i) const { return causal ? tile * tile * (i * (i + 1) / 2) : i * tile * keys; }
  int64_t per_head() const { return queries == 0 ? 0 : offset(count() - 1) + rows(count() - 1) * width(count() - 1); }
};

struct Coefficient {  // of one head, or shared by all
  at::ArrayRef<double> values;
  float operator[](int64_t head) const { return values[values.size() == 1 ? 0 : head]; }
};

float dot(const float* a, const float* b, int64_t n) {
  Vec sum(0.0f);
  by_vectors(n, [&](int64_t j, int count) { sum = at::vec::fmadd(load(a + j, count), load(b + j, count), sum); });
  return total(sum);
}

// x /= divisor, and its product with y; a division rounds once, where a factor 1 / divisor would be off already
float divide_and_dot(float* x, float divisor, const float* y, int64_t n) {
  Vec sum(0.0f), by(divisor);
  by_vectors(n, [&](int64_t j, int count) {
    const Vec value = load(x + j, count) / by;
    value.store(x + j, count);
    sum = at::vec::fmadd(value, load(y + j, count), sum);
  });
  return total(sum);
}

void scale_row(float* x, float factor, int64_t n) {
  by_vectors(n, [&](int64_t j, int count) { (load(x + j, count) * Vec(factor)).store(x + j, count); });
}

// `hidden` is float32, or bfloat16 whose bits are those of float16: then a strip is computed beside it and rounded into it.
template <typename Stored>
void carried_forward_strips(
    const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& old, const Tensor& hidden,
    const SoftmaxSettings& softmax, Coefficient keeps, Coefficient gains, const Strips& strips, const Strips& olds,
    const Tensor& out, const Tensor& logsumexp) {
  constexpr bool direct = std::is_same_v<Stored, float>;
  const int64_t heads = q.size(1), queries = q.size(2), keys = k.size(2), size = q.size(3), value_size = v.size(3);
  const int64_t shared = heads / k.size(1);
  Stored* const scores = static_cast<Stored*>(hidden.mutable_data_ptr());
  const Stored* const before = old ? static_cast<const Stored*>(old->const_data_ptr()) : nullptr;
  const bool in_place = direct && before == scores;  // the old scores are then added inside the matrix product
  const int64_t rows = std::min(strips.tile, queries);
  const Scratch scratch(rows * keys + keys + rows, q);

  at::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    float* const weights = scratch.mine();
    float* const factors = weights + rows * keys;
    float* const inverses = factors + keys;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / heads, h = item % heads;
      const float keep = keeps[h], gain = gains[h];
      const Matrix qs = head(q, b, h), ks = head(k, b, h / shared), vs = head(v, b, h / shared);
      const MutableMatrix outs = mutable_head(out, b, h);
      for (int64_t i = 0; i < strips.count(); ++i) {
        const int64_t first = strips.first(i), count = strips.rows(i), width = strips.width(i);
        Stored* const place = scores + item * strips.per_head() + strips.offset(i);
        float* computed = weights;
        if constexpr (direct) computed = place;
        const MutableMatrix strip{computed, width};
        scores_of(count, width, size, gain, qs.from(first), ks, in_place ? keep : 0.0f, strip);
        const Stored* old_row = before && !in_place ? before + item * olds.per_head() + olds.offset(i) : nullptr;
        for (int64_t r = 0; r < count; ++r) {
          const int64_t row = first + r;
          const RowPosition at{b, h, row, item * queries + row, softmax.causal ? row + 1 : width, width};
          float* const line = logsumexp.mutable_data_ptr<float>() + item * queries + row;
          float* const values = strip.data + r * width;
          const float* added = nullptr;
          if constexpr (direct) {
            added = old_row;
          } else {
            inherit_and_store(values, old_row, keep, place + r * width, at.seen);
            std::fill(place + r * width + at.seen, place + (r + 1) * width, Half(-INF));
          }
          softmax_row(values, added, keep, weights + r * width, factors, at, softmax, inverses[r], *line);
          if (old_row) old_row += olds.width(i);
        }
        read_values(count, value_size, width, {weights, width}, vs, outs.from(first));
        for (int64_t r = 0; r < count; ++r) scale_row(outs.from(first + r).data, inverses[r], value_size);
      }
    }
  });
}

std::tuple<Tensor, Tensor> carried_forward(
    const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const OptionalTensor& old, const Tensor& hidden,
    const OptionalTensor& mask, at::ArrayRef<double> keep, at::ArrayRef<double> gain, bool causal, bool old_causal,
    double dropout_p, int64_t seed, int64_t tile) {
  const Tensor q = as_float(q_in), k = as_float(k_in), v = as_float(v_in);
  const int64_t heads = q.size(1), queries = q.size(2), keys = k.size(2);
  Tensor out = tokens_first(q, heads, queries, v.size(3));
  Tensor logsumexp = at::empty({q.size(0), heads, queries}, q.options());
  if (keys == 0) out.zero_();
  if (q.numel() == 0 || keys == 0) return {out.to(q_in.scalar_type()), logsumexp.fill_(INF)};
  const SoftmaxSettings softmax = make_settings(mask, q, keys, causal, dropout_p, seed);
  const Strips strips{queries, keys, tile, causal}, olds{queries, keys, tile, old_causal};
  const auto run = hidden.scalar_type() == at::kFloat ? carried_forward_strips<float> : carried_forward_strips<Half>;
  run(q, k, v, old, hidden, softmax, {keep}, {gain}, strips, olds, out, logsumexp);
  return {out.to(q_in.scalar_type()), logsumexp};
}

struct CarriedGradients {
  Tensor dq, dk, dv;
  Tensor dkeep, dgain;  // (B, H)
};

// With `reverse`, H_{n-1} = (H_n - gain Q K^T) / keep is written over H_n. Otherwise `old` is H_{n-1}, or nothing where
// the gradient of keep is not asked for.
template <typename Stored>
void carried_backward_strips(
    const Tensor& dout, const OptionalTensor& grad_hidden, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& hidden, const Tensor& logsumexp, const OptionalTensor& grad_old,
    const OptionalTensor& old, bool reverse, const SoftmaxSettings& softmax, Coefficient keeps, Coefficient gains,
    const Strips& strips, const Strips& olds, const CarriedGradients& grads) {
  constexpr bool direct = std::is_same_v<Stored, float>;
  using Gradient = std::conditional_t<direct, float, BFloat16>;
  const int64_t heads = q.size(1), queries = q.size(2), keys = k.size(2), size = q.size(3), value_size = v.size(3);
  const int64_t shared = heads / k.size(1);
  Stored* const scores = static_cast<Stored*>(hidden.mutable_data_ptr());
  const Tensor carried_in = grad_hidden ? grad_hidden->contiguous() : Tensor();
  const Gradient* const carried = grad_hidden ? static_cast<const Gradient*>(carried_in.const_data_ptr()) : nullptr;
  Gradient* const inherited = grad_old ? static_cast<Gradient*>(grad_old->mutable_data_ptr()) : nullptr;
  const Stored* const before = old ? static_cast<const Stored*>(old->const_data_ptr()) : nullptr;
  const int64_t rows = std::min(strips.tile, queries);
  const Scratch scratch(2 * rows * keys + (direct ? 1 : 4) * keys, q);

  at::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    float* const weights = scratch.mine();
    float* const gradient = weights + rows * keys;
    float* const factors = gradient + rows * keys;
    float* const wide = factors + keys;  // a row of scores, of the gradient from above, and of the one that goes below
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / heads, h = item % heads;
      const float keep = keeps[h], gain = gains[h];
      const Matrix qs = head(q, b, h), ks = head(k, b, h / shared), vs = head(v, b, h / shared);
      const Matrix douts = head(dout, b, h), outs = head(out, b, h);
      const MutableMatrix dqs = mutable_head(grads.dq, b, h), dks = mutable_head(grads.dk, b, h);
      const MutableMatrix dvs = mutable_head(grads.dv, b, h);
      double dkeep = 0.0, dgain = 0.0;
      float beta = 0.0f;  // the last strip is the widest: it writes what the others add to
      for (int64_t i = strips.count() - 1; i >= 0; --i, beta = 1.0f) {
        const int64_t first = strips.first(i), count = strips.rows(i), width = strips.width(i);
        const int64_t place = item * strips.per_head() + strips.offset(i);
        const int64_t old_place = item * olds.per_head() + olds.offset(i), old_width = olds.width(i);
        scores_of(count, width, value_size, 1.0f, douts.from(first), vs, 0.0f, {gradient, width});
        for (int64_t r = 0; r < count; ++r) {
          const int64_t row = first + r, skip = place + r * width, old_skip = old_place + r * old_width;
          const RowPosition at{b, h, row, item * queries + row, softmax.causal ? row + 1 : width, width};
          const float *line = nullptr, *above = nullptr;
          float* below = nullptr;
          if constexpr (direct) {
            line = scores + skip;
            above = carried ? carried + skip : nullptr;
            below = inherited ? inherited + old_skip : nullptr;
          } else {
            widen(scores + skip, wide, at.seen);
            if (carried) widen(carried + skip, wide + keys, at.seen);
            line = wide;
            above = carried ? wide + keys : nullptr;
            below = inherited ? wide + 2 * keys : nullptr;
          }
          softmax_row_backward(
              line, above, weights + r * width, gradient + r * width, factors, below, keep, at, softmax,
              logsumexp.const_data_ptr<float>()[item * queries + row],
              dot(douts.from(row).data, outs.from(row).data, value_size));
          if constexpr (!direct) {
            if (inherited) narrow(below, inherited + old_skip, width);
          }
          if (inherited) std::fill(inherited + old_skip + width, inherited + old_skip + old_width, Gradient(0.0f));
          if (before) {
            const float* earlier = nullptr;
            if constexpr (direct) {
              earlier = before + old_skip;
            } else {
              widen(before + old_skip, wide, at.seen);
              earlier = wide;
            }
            dkeep += dot(gradient + r * width, earlier, at.seen);
          }
        }
        if constexpr (direct) {
          if (reverse) {
            const MutableMatrix strip{scores + place, width};
            scores_of(count, width, size, -gain, qs.from(first), ks, 1.0f, strip);
            for (int64_t r = 0; r < count; ++r) {
              const int64_t seen = softmax.causal ? first + r + 1 : width;
              dkeep += divide_and_dot(strip.data + r * width, keep, gradient + r * width, seen);
            }
          }
        }
        const Matrix change{gradient, width};
        gather(width, value_size, count, 1.0f, {weights, width}, douts.from(first), beta, dvs);
        product(Op::plain, Op::plain, count, size, width, 1.0f, change, ks, 0.0f, dqs.from(first));
        for (int64_t r = first; r < first + count; ++r) {
          dgain += dot(qs.from(r).data, dqs.from(r).data, size);
          scale_row(dqs.from(r).data, gain, size);
        }
        gather(width, size, count, gain, change, qs.from(first), beta, dks);
      }
      grads.dkeep.mutable_data_ptr<float>()[item] = static_cast<float>(dkeep);
      grads.dgain.mutable_data_ptr<float>()[item] = static_cast<float>(dgain);
    }
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> carried_backward(
    const Tensor& grad_in, const OptionalTensor& grad_hidden, const Tensor& q_in, const Tensor& k_in,
    const Tensor& v_in, const Tensor& out_in, const Tensor& hidden, const Tensor& logsumexp,
    const OptionalTensor& grad_old, const OptionalTensor& old, bool reverse, const OptionalTensor& mask,
    at::ArrayRef<double> keep, at::ArrayRef<double> gain, bool causal, bool old_causal, double dropout_p, int64_t seed,
    int64_t tile) {
  const Tensor q = as_float(q_in), k = as_float(k_in), v = as_float(v_in);
  const Tensor dout = as_float(grad_in), out = as_float(out_in);
  const int64_t heads = q.size(1), queries = q.size(2), keys = k.size(2), groups = k.size(1);
  const bool grouped = groups != heads;
  const CarriedGradients grads{
      gradient_like(q),
      grouped ? tokens_first(k, heads, keys, q.size(3)) : gradient_like(k),
      grouped ? tokens_first(v, heads, keys, v.size(3)) : gradient_like(v),
      at::zeros({q.size(0), heads}, q.options()),
      at::zeros({q.size(0), heads}, q.options())};
  if (q.numel() == 0 || keys == 0) {
    return {at::zeros_like(q_in), at::zeros_like(k_in), at::zeros_like(v_in), grads.dkeep, grads.dgain};
  }
  const bool wide = hidden.scalar_type() == at::kFloat;
  TORCH_CHECK(wide || !reverse, "scores in two bytes cannot be run backwards");
  const SoftmaxSettings softmax = make_settings(mask, q, keys, causal, dropout_p, seed);
  const Strips strips{queries, keys, tile, causal}, olds{queries, keys, tile, old_causal};
  const auto run = wide ? carried_backward_strips<float> : carried_backward_strips<Half>;
  run(dout, grad_hidden, q, k, v, out, hidden, logsumexp, grad_old, old, reverse, softmax, {keep}, {gain}, strips,
      olds, grads);
  const auto dtype = q_in.scalar_type();
  return {
      grads.dq.to(dtype), sum_groups(grads.dk, groups).to(dtype), sum_groups(grads.dv, groups).to(dtype), grads.dkeep,
      grads.dgain};
}

struct Stack {  // the layers whose sum is H_n, side by side along the head size: one product makes their sum
  std::vector<Tensor> qs, ks;
  std::vector<double> weights;  // one a layer, or one a layer and head
  int64_t size, heads, shared;

  Stack(at::TensorList q_list, at::TensorList k_list, at::ArrayRef<double> w) : weights(w.begin(), w.end()) {
    for (const Tensor& q : q_list) qs.push_back(as_float(q));
    for (const Tensor& k : k_list) ks.push_back(as_float(k));
    TORCH_CHECK(!qs.empty() && qs.size() == ks.size(), "as many keys as queries");
    size = qs[0].size(3);
    heads = qs[0].size(1);
    shared = heads / ks[0].size(1);
    TORCH_CHECK(w.size() == qs.size() || w.size() == qs.size() * heads, "one weight a layer, or a layer and head");
  }

  int64_t depth() const { return static_cast<int64_t>(qs.size()); }
  float weight(int64_t l, int64_t h) const {
    return weights[weights.size() == qs.size() ? l : l * heads + h];
  }
  int64_t wide() const { return depth() * size; }

  void gather_keys(int64_t b, int64_t h, int64_t keys, float* into) const {
    for (int64_t l = 0; l < depth(); ++l) {
      const Matrix from = head(ks[l], b, h / shared);
      for (int64_t j = 0; j < keys; ++j) std::copy_n(from.data + j * from.ld, size, into + j * wide() + l * size);
    }
  }

  void gather_queries(int64_t b, int64_t h, int64_t first, int64_t count, float* into) const {
    for (int64_t l = 0; l < depth(); ++l) {
      const Matrix from = head(qs[l], b, h).from(first);
      const float weight = this->weight(l, h);
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t d = 0; d < size; ++d) into[r * wide() + l * size + d] = weight * from.data[r * from.ld + d];
      }
    }
  }
};

std::tuple<Tensor, Tensor> stacked_forward(
    at::TensorList q_list, at::TensorList k_list, const Tensor& v_in, at::ArrayRef<double> weight_list,
    double cap, const OptionalTensor& mask, bool causal, double dropout_p, int64_t seed, int64_t tile) {
  const Stack stack(q_list, k_list, weight_list);
  const Tensor v = as_float(v_in), q = stack.qs[0];
  const int64_t heads = stack.heads, queries = q.size(2), keys = v.size(2), value_size = v.size(3), wide = stack.wide();
  Tensor out = tokens_first(q, heads, queries, value_size);
  Tensor logsumexp = at::empty({q.size(0), heads, queries}, q.options());
  if (keys == 0) out.zero_();
  if (q.numel() == 0 || keys == 0) return {out.to(v_in.scalar_type()), logsumexp.fill_(INF)};
  const SoftmaxSettings softmax = make_settings(mask, q, keys, causal, dropout_p, seed);
  const Strips strips{queries, keys, tile, causal};
  const int64_t rows = std::min(tile, queries);
  const Scratch scratch(rows * keys + keys + rows + rows * wide + keys * wide, q);

  at::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    float* const strip = scratch.mine();
    float* const factors = strip + rows * keys;
    float* const inverses = factors + keys;
    float* const ours = inverses + rows;
    float* const theirs = ours + rows * wide;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / heads, h = item % heads;
      const Matrix vs = head(v, b, h / stack.shared);
      const MutableMatrix outs = mutable_head(out, b, h);
      stack.gather_keys(b, h, keys, theirs);
      for (int64_t i = 0; i < strips.count(); ++i) {
        const int64_t first = strips.first(i), count = strips.rows(i), width = strips.width(i);
        stack.gather_queries(b, h, first, count, ours);
        scores_of(count, width, wide, 1.0f, {ours, wide}, {theirs, wide}, 0.0f, {strip, width});
        for (int64_t r = 0; r < count; ++r) {
          const int64_t row = first + r;
          const RowPosition at{b, h, row, item * queries + row, causal ? row + 1 : width, width};
          float* const line = logsumexp.mutable_data_ptr<float>() + item * queries + row;
          float* const scores = strip + r * width;  // the weights are written over them
          if (cap > 0.0) cap_row(scores, cap, at.seen);
          softmax_row(scores, nullptr, 0.0f, scores, factors, at, softmax, inverses[r], *line);
        }
        read_values(count, value_size, width, {strip, width}, vs, outs.from(first));
        for (int64_t r = 0; r < count; ++r) scale_row(outs.from(first + r).data, inverses[r], value_size);
      }
    }
  });
  return {out.to(v_in.scalar_type()), logsumexp};
}

std::tuple<Tensor, std::vector<Tensor>, std::vector<Tensor>, Tensor> stacked_backward(
    const Tensor& grad_in, at::TensorList q_list, at::TensorList k_list, const Tensor& v_in, const Tensor& out_in,
    const Tensor& logsumexp, at::ArrayRef<double> weight_list, double cap, const OptionalTensor& mask, bool causal,
    double dropout_p, int64_t seed, int64_t tile) {
  const Stack stack(q_list, k_list, weight_list);
  const Tensor v = as_float(v_in), dout = as_float(grad_in), out = as_float(out_in), q = stack.qs[0];
  const int64_t heads = stack.heads, queries = q.size(2), keys = v.size(2), value_size = v.size(3);
  const int64_t size = stack.size, wide = stack.wide(), groups = v.size(1), depth = stack.depth();
  const bool grouped = groups != heads;
  Tensor dv = grouped ? tokens_first(v, heads, keys, value_size) : gradient_like(v);
  Tensor dweights = at::zeros({depth, q.size(0), heads}, q.options());
  std::vector<Tensor> dqs, dks;
  for (int64_t l = 0; l < depth; ++l) {
    dqs.push_back(gradient_like(stack.qs[l]));
    dks.push_back(grouped ? tokens_first(stack.ks[l], heads, keys, size) : gradient_like(stack.ks[l]));
  }
  if (q.numel() == 0 || keys == 0) {
    for (int64_t l = 0; l < depth; ++l) dqs[l] = at::zeros_like(q_list[l]), dks[l] = at::zeros_like(k_list[l]);
    return {at::zeros_like(v_in), dqs, dks, dweights};
  }
  const SoftmaxSettings softmax = make_settings(mask, q, keys, causal, dropout_p, seed);
  const Strips strips{queries, keys, tile, causal};
  const int64_t rows = std::min(tile, queries);
  const Scratch scratch(2 * rows * keys + 2 * keys + 2 * rows * wide + 2 * keys * wide, q);

  at::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    float* const strip = scratch.mine();
    float* const gradient = strip + rows * keys;
    float* const factors = gradient + rows * keys;
    float* const capped = factors + keys;  // the scores of a row, for the derivative of the cap
    float* const ours = capped + keys;
    float* const dours = ours + rows * wide;
    float* const theirs = dours + rows * wide;
    float* const dtheirs = theirs + keys * wide;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / heads, h = item % heads;
      const Matrix vs = head(v, b, h / stack.shared), douts = head(dout, b, h), outs = head(out, b, h);
      const MutableMatrix dvs = mutable_head(dv, b, h);
      stack.gather_keys(b, h, keys, theirs);
      float beta = 0.0f;  // the last strip is the widest: it writes what the others add to
      for (int64_t i = strips.count() - 1; i >= 0; --i, beta = 1.0f) {
        const int64_t first = strips.first(i), count = strips.rows(i), width = strips.width(i);
        stack.gather_queries(b, h, first, count, ours);
        scores_of(count, width, wide, 1.0f, {ours, wide}, {theirs, wide}, 0.0f, {strip, width});
        scores_of(count, width, value_size, 1.0f, douts.from(first), vs, 0.0f, {gradient, width});
        for (int64_t r = 0; r < count; ++r) {
          const int64_t row = first + r;
          const RowPosition at{b, h, row, item * queries + row, causal ? row + 1 : width, width};
          float* const scores = strip + r * width;  // the weights are written over them
          if (cap > 0.0) {
            cap_row(scores, cap, at.seen);
            std::copy_n(scores, at.seen, capped);
          }
          softmax_row_backward(
              scores, nullptr, scores, gradient + r * width, factors, nullptr, 0.0f, at, softmax,
              logsumexp.const_data_ptr<float>()[item * queries + row],
              dot(douts.from(row).data, outs.from(row).data, value_size));
          if (cap > 0.0) cap_row_backward(capped, gradient + r * width, cap, at.seen);
        }
        const Matrix change{gradient, width};
        gather(width, value_size, count, 1.0f, {strip, width}, douts.from(first), beta, dvs);
        product(Op::plain, Op::plain, count, wide, width, 1.0f, change, {theirs, wide}, 0.0f, {dours, wide});
        gather(width, wide, count, 1.0f, change, {ours, wide}, beta, {dtheirs, wide});
        for (int64_t l = 0; l < depth; ++l) {
          const MutableMatrix into = mutable_head(dqs[l], b, h).from(first);
          const Matrix own = head(stack.qs[l], b, h).from(first);
          const float weight = stack.weight(l, h);
          float& dweight = dweights.mutable_data_ptr<float>()[l * q.size(0) * heads + item];
          for (int64_t r = 0; r < count; ++r) {
            const float* const change_row = dours + r * wide + l * size;
            dweight += dot(own.data + r * own.ld, change_row, size);
            for (int64_t d = 0; d < size; ++d) into.data[r * into.ld + d] = weight * change_row[d];
          }
        }
      }
      for (int64_t l = 0; l < depth; ++l) {
        const MutableMatrix into = mutable_head(dks[l], b, h);
        for (int64_t j = 0; j < keys; ++j) std::copy_n(dtheirs + j * wide + l * size, size, into.data + j * into.ld);
      }
    }
  });
  for (int64_t l = 0; l < depth; ++l) {
    dqs[l] = dqs[l].to(q_list[l].scalar_type());
    dks[l] = sum_groups(dks[l], groups).to(k_list[l].scalar_type());
  }
  return {sum_groups(dv, groups).to(v_in.scalar_type()), dqs, dks, dweights};
}

}  // namespace

TORCH_LIBRARY(uncollapse_native, m) {
  m.def(
      "carried_forward(Tensor q, Tensor k, Tensor v, Tensor? old, Tensor(a!) hidden, *, Tensor? attn_mask, "
      "float[] keep, float[] gain, bool is_causal, bool old_causal, float dropout_p, int seed, int tile) "
      "-> (Tensor, Tensor)");
  m.def(
      "carried_backward(Tensor grad_out, Tensor? grad_hidden, Tensor q, Tensor k, Tensor v, Tensor out, "
      "Tensor(a!) hidden, Tensor logsumexp, Tensor(b!)? grad_old, Tensor? old, *, bool reverse, Tensor? attn_mask, "
      "float[] keep, float[] gain, bool is_causal, bool old_causal, float dropout_p, int seed, int tile) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "stacked_forward(Tensor[] qs, Tensor[] ks, Tensor v, *, float[] weights, float cap, Tensor? attn_mask, "
      "bool is_causal, float dropout_p, int seed, int tile) -> (Tensor, Tensor)");
  m.def(
      "stacked_backward(Tensor grad_out, Tensor[] qs, Tensor[] ks, Tensor v, Tensor out, Tensor logsumexp, *, "
      "float[] weights, float cap, Tensor? attn_mask, bool is_causal, float dropout_p, int seed, int tile) "
      "-> (Tensor, Tensor[], Tensor[], Tensor)");
}

TORCH_LIBRARY_IMPL(uncollapse_native, CPU, m) {
  m.impl("carried_forward", &carried_forward);
  m.impl("carried_backward", &carried_backward);
  m.impl("stacked_forward", &stacked_forward);
  m.impl("stacked_backward", &stacked_backward);
}
