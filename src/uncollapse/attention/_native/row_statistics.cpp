// What a diagnosis reads of attention rows: a block of scores is made, read while it lies in the cache, and forgotten.
//
// Shapes: B batch, H query heads, G key heads, Q queries, K keys, D head size.
// A row sees a run of keys: `seen` (B, H, Q, 2) holds the first and the one behind the last, int32; an empty run leaves
// the row out. The reference is `row_statistics` of metrics/entropy.py; attention/row_statistics.py says what is what.

#include "matrices.h"

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tuple>

namespace {

constexpr int64_t BLOCK = 1 << 16;  // scores of a block: 256 KB, which stay in the cache of a core
constexpr int64_t MOST_ROWS = 64, FEWEST_ROWS = 4;
constexpr int64_t CHUNK = 2048;      // entries that are summed in float32; sums of chunks are added in float64
constexpr float VANISHED = 1e-30f;   // sums of exponentials below this have lost digits
constexpr int FIELDS = 8;

struct RowFields {
  float sum = 0, squares = 0, entropy = 0, entropy_no_first = 0, first = 0, largest = 0, gap = 0, weight_squares = 0;
};

struct Span {
  int64_t first = 0, last = 0;
  int64_t size() const { return last - first; }
};

class Seen {
 public:
  explicit Seen(const Tensor& seen) : seen_(seen), data_(seen.const_data_ptr<int32_t>()) {}

  Span row(int64_t b, int64_t h, int64_t row) const {
    const int32_t* at = data_ + b * seen_.stride(0) + h * seen_.stride(1) + row * seen_.stride(2);
    return {at[0], at[seen_.stride(3)]};
  }

  Span rows(int64_t b, int64_t h, int64_t start, int64_t count) const {  // the run that holds those of all rows
    Span all;
    for (int64_t r = start; r < start + count; ++r) {
      const Span one = row(b, h, r);
      if (one.size() <= 0) continue;
      all = all.size() == 0 ? one : Span{std::min(all.first, one.first), std::max(all.last, one.last)};
    }
    return all;
  }

 private:
  Tensor seen_;
  const int32_t* data_;
};

template <typename F>
inline void by_chunks(int64_t n, const F& f) {  // f(offset, count)
  for (int64_t j = 0; j < n; j += CHUNK) f(j, std::min(CHUNK, n - j));
}

// The sum of the scores and of their squares, and the two largest.
void read_scores(const float* x, int64_t n, RowFields& row, float& second) {
  double sum = 0.0, squares = 0.0;
  Vec best(-INF), next(-INF);
  by_chunks(n, [&](int64_t start, int64_t length) {
    Vec sums(0.0f), products(0.0f);
    by_vectors(length, [&](int64_t j, int count) {
      const Vec value = load(x + start + j, count);  // 0 behind the end
      sums = sums + value;
      products = at::vec::fmadd(value, value, products);
      const Vec other = or_else(value, -INF, count);
      next = at::vec::clamp_min(at::vec::clamp_max(other, best), next);
      best = at::vec::clamp_min(other, best);
    });
    sum += total(sums);
    squares += total(products);
  });
  float bests[Vec::size()], nexts[Vec::size()];
  best.store(bests);
  next.store(nexts);
  float first = -INF;
  second = -INF;
  for (int i = 0; i < Vec::size(); ++i) {
    for (float value : {bests[i], nexts[i]}) {
      second = std::max(second, std::min(first, value));
      first = std::max(first, value);
    }
  }
  row.sum = static_cast<float>(sum);
  row.squares = static_cast<float>(squares);
  row.largest = first;
}

struct Exponentials {  // e_j = exp(x_j - shift)
  double sum = 0.0;
  double product = 0.0;  // of e_j and x_j - shift
  double squares = 0.0;
  double entropy() const { return sum > 0.0 ? std::max(0.0, std::log(sum) - product / sum) : 0.0; }
};

Exponentials exponentials(const float* x, int64_t n, float shift, float* out) {
  Exponentials all;
  const Vec by(shift);
  by_chunks(n, [&](int64_t start, int64_t length) {
    Vec sums(0.0f), products(0.0f), squares(0.0f);
    by_vectors(length, [&](int64_t j, int count) {
      const Vec relative = load(x + start + j, count) - by;
      const Vec value = or_else(relative.exp_u20(), 0.0f, count);
      value.store(out + start + j, count);
      sums = sums + value;
      products = at::vec::fmadd(value, relative, products);
      squares = at::vec::fmadd(value, value, squares);
    });
    all.sum += total(sums);
    all.product += total(products);
    all.squares += total(squares);
  });
  return all;
}

// Statistics of a row of n scores; `weights` becomes its exponentials, and their sum is returned.
float read_row(const float* x, int64_t n, float* weights, RowFields& row) {
  float second = -INF;
  read_scores(x, n, row, second);
  if (!std::isfinite(row.sum) || !std::isfinite(row.squares)) return 0.0f;
  row.gap = n > 1 ? row.largest - second : 0.0f;
  const float first_relative = x[0] - row.largest;
  const double first = std::exp(static_cast<double>(first_relative));
  Exponentials rest = exponentials(x + 1, n - 1, row.largest, weights + 1);  // without the first key: see the reference
  if (rest.sum < VANISHED && n > 1) {  // next to such a sink the others leave float32's range: take them alone
    row.entropy_no_first = exponentials(x + 1, n - 1, row_max(x + 1, n - 1), weights + 1).entropy();
    rest = exponentials(x + 1, n - 1, row.largest, weights + 1);
  } else {
    row.entropy_no_first = rest.entropy();
  }
  weights[0] = static_cast<float>(first);
  const Exponentials all{rest.sum + first, rest.product + first * first_relative, rest.squares + first * first};
  row.entropy = all.entropy();
  row.first = first / all.sum;
  row.weight_squares = all.squares / (all.sum * all.sum);
  return static_cast<float>(all.sum);
}

void add_scaled(float* to, const float* x, float factor, int64_t n) {
  const Vec by(factor);
  by_vectors(n, [&](int64_t j, int count) {
    at::vec::fmadd(load(x + j, count), by, load(to + j, count)).store(to + j, count);
  });
}

struct Layer {
  Tensor q, k;
  Seen seen;
  float scale;
  int64_t heads, shared, queries, keys, size, block;

  Layer(const Tensor& q_in, const Tensor& k_in, const Tensor& seen_in, double scale_in)
      : q(as_float(q_in)), k(as_float(k_in)), seen(seen_in), scale(scale_in) {
    heads = q.size(1), queries = q.size(2), keys = k.size(2), size = q.size(3);
    TORCH_CHECK(seen_in.dim() == 4 && seen_in.size(0) == q.size(0) && seen_in.size(1) == heads, "seen is (B, H, Q, 2)");
    TORCH_CHECK(seen_in.size(2) == queries && seen_in.size(3) == 2, "seen is (B, H, Q, 2)");
    TORCH_CHECK(k.size(0) == q.size(0) && k.size(3) == size && k.size(1) > 0, "keys fit the queries");
    TORCH_CHECK(heads % k.size(1) == 0, "query heads are a multiple of key heads");
    shared = heads / k.size(1);
    block = std::clamp(BLOCK / std::max<int64_t>(keys, 1), FEWEST_ROWS, MOST_ROWS);
  }

  // f(row, its scores, the keys that it sees) for every row of a head that sees one
  template <typename F>
  void each_row(int64_t b, int64_t h, float* strip, const F& f) const {
    const Matrix qs = head(q, b, h), ks = head(k, b, h / shared);
    for (int64_t start = 0; start < queries; start += block) {
      const int64_t count = std::min(block, queries - start);
      const Span all = seen.rows(b, h, start, count);
      if (all.size() == 0) continue;
      TORCH_CHECK(all.first >= 0 && all.last <= keys, "a row sees keys that are not there");
      const int64_t width = all.size();
      product(
          Op::plain, Op::transposed, count, width, size, scale, qs.from(start), ks.from(all.first), 0.0f,
          {strip, width});
      for (int64_t r = 0; r < count; ++r) {
        const Span run = seen.row(b, h, start + r);
        if (run.size() > 0) f(start + r, strip + r * width + (run.first - all.first), run);
      }
    }
  }
};

std::tuple<Tensor, Tensor> row_statistics(const Tensor& q, const Tensor& k, const Tensor& seen, double scale) {
  const Layer layer(q, k, seen, scale);
  const int64_t items = q.size(0) * layer.heads, queries = layer.queries, keys = layer.keys;
  const auto options = layer.q.options();
  const Tensor rows = at::zeros({FIELDS, q.size(0), layer.heads, queries}, options);
  const Tensor columns = at::zeros({2, q.size(0), layer.heads, keys}, options);
  const Scratch scratch(layer.block * keys + keys, layer.q);
  float* const out = rows.mutable_data_ptr<float>();

  at::parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
    float* const strip = scratch.mine();
    float* const weights = strip + layer.block * keys;
    for (int64_t item = begin; item < end; ++item) {
      float* const chosen = columns.mutable_data_ptr<float>() + item * keys;  // of rows that have a choice
      float* const single = chosen + items * keys;                           // of all rows
      layer.each_row(item / layer.heads, item % layer.heads, strip, [&](int64_t r, const float* x, const Span& run) {
        RowFields row;
        const float sum = read_row(x, run.size(), weights, row);
        const float fields[FIELDS] = {row.sum,   row.squares, row.entropy, row.entropy_no_first,
                                      row.first, row.largest, row.gap,     row.weight_squares};
        for (int f = 0; f < FIELDS; ++f) out[(f * items + item) * queries + r] = fields[f];
        if (sum > 0.0f) add_scaled((run.size() > 1 ? chosen : single) + run.first, weights, 1.0f / sum, run.size());
      });
      add_scaled(single, chosen, 1.0f, keys);
    }
  });
  return {rows, columns};
}

Tensor largest_scores(const Tensor& q, const Tensor& k, const Tensor& seen, double scale) {
  const Layer layer(q, k, seen, scale);
  const Tensor rows = at::empty({q.size(0), layer.heads, layer.queries}, layer.q.options()).fill_(-INF);
  const Scratch scratch(layer.block * layer.keys, layer.q);
  at::parallel_for(0, q.size(0) * layer.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      float* const out = rows.mutable_data_ptr<float>() + item * layer.queries;
      layer.each_row(
          item / layer.heads, item % layer.heads, scratch.mine(),
          [&](int64_t r, const float* x, const Span& run) { out[r] = row_max(x, run.size()); });
    }
  });
  return rows;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(uncollapse_native, m) {
  m.def("row_statistics(Tensor q, Tensor k, Tensor seen, *, float scale) -> (Tensor, Tensor)");
  m.def("largest_scores(Tensor q, Tensor k, Tensor seen, *, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(uncollapse_native, CPU, m) {
  m.impl("row_statistics", &row_statistics);
  m.impl("largest_scores", &largest_scores);
}
