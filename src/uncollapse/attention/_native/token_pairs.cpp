// Cosines of all pairs of tokens of a sequence: a block of products is made, counted while it lies in the cache, and
// forgotten.
//
// Shapes: T tokens, M model width. The reference is `count_raw_and_centred` of metrics/similarity.py, which says what
// the factors of a token are.

#include "matrices.h"

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <tuple>
#include <vector>

namespace {

constexpr int64_t ROWS = 32;     // tokens of a block
constexpr int64_t CHUNK = 2048;  // cosines that are summed in float32; sums of chunks are added in float64
constexpr int COPIES = 4;        // of the counts, so that two entries of one bin do not wait for one another

class Counts {  // of one kind of cosines, over [-1, 1]
 public:
  explicit Counts(int64_t bins) : bins_(bins), counts_(COPIES * bins, 0), half_(bins / 2.0f), last_(bins - 1.0f) {}

  void add(const Vec& cosines, int count) {
    const Vec place = at::vec::clamp((cosines + Vec(1.0f)) * Vec(half_), Vec(0.0f), Vec(last_));
    at::vec::convert_to_int_of_same_size(place).store(places_.data());
    for (int i = 0; i < count; ++i) ++counts_[(i % COPIES) * bins_ + places_[i]];
    sums_ = sums_ + or_else(cosines, 0.0f, count);
  }

  void flush() {  // what was summed in float32
    sum_ += total(sums_);
    sums_ = Vec(0.0f);
  }

  void add_to(int64_t* counts, double& sum) const {
    for (int64_t i = 0; i < COPIES * bins_; ++i) counts[i % bins_] += counts_[i];
    sum += sum_;
  }

 private:
  int64_t bins_;
  std::vector<int64_t> counts_;
  float half_, last_;
  std::array<int32_t, Vec::size()> places_;
  Vec sums_ = Vec(0.0f);
  double sum_ = 0.0;
};

struct Tokens {
  const float *unit, *share, *inverse, *common;
  int64_t tokens, width;
};

Vec limited(const Vec& cosines) { return at::vec::clamp(cosines, Vec(-1.0f), Vec(1.0f)); }

// The pairs of token `row` with all later ones; `x` holds their products.
void count_row(const Tokens& all, int64_t row, const float* x, Counts& raw, Counts& centred) {
  const Vec share(all.share[row]), inverse(all.inverse[row]), common(all.common[row]);
  const int64_t first = row + 1, n = all.tokens - first;
  for (int64_t start = 0; start < n; start += CHUNK) {
    by_vectors(std::min(CHUNK, n - start), [&](int64_t offset, int count) {
      const int64_t j = start + offset, other = first + j;
      const Vec cosine = load(x + j, count);
      const Vec around = common * load(all.inverse + other, count) + inverse * load(all.common + other, count);
      const Vec whole = at::vec::fmadd(cosine * share, load(all.share + other, count), around);
      raw.add(limited(whole), count);
      centred.add(limited(cosine), count);
    });
    raw.flush();
    centred.flush();
  }
}

void count_block(const Tokens& all, int64_t start, float* strip, Counts& raw, Counts& centred) {
  const int64_t rows = std::min(ROWS, all.tokens - start), columns = all.tokens - start;
  const Matrix from{all.unit + start * all.width, all.width};
  product(Op::plain, Op::transposed, rows, columns, all.width, 1.0f, from, from, 0.0f, {strip, columns});
  for (int64_t r = 0; r < rows; ++r) count_row(all, start + r, strip + r * columns + r + 1, raw, centred);
}

// Counts (2, bins) and sums (2,) of the raw and of the centred cosines.
std::tuple<Tensor, Tensor> count_pairs(
    const Tensor& unit, const Tensor& share, const Tensor& inverse, const Tensor& common, int64_t bins) {
  TORCH_CHECK(unit.dim() == 2 && unit.is_contiguous() && unit.scalar_type() == at::kFloat, "unit is (T, M), float32");
  for (const Tensor& one : {share, inverse, common}) {
    TORCH_CHECK(one.dim() == 1 && one.size(0) == unit.size(0), "a factor for each token");
    TORCH_CHECK(one.is_contiguous() && one.scalar_type() == at::kFloat, "factors are float32");
  }
  TORCH_CHECK(bins > 0, "at least one bin");
  const auto data = [](const Tensor& of) { return of.const_data_ptr<float>(); };
  const Tokens all{data(unit), data(share), data(inverse), data(common), unit.size(0), unit.size(1)};
  const Tensor counts = at::zeros({2, bins}, unit.options().dtype(at::kLong));
  const Tensor sums = at::zeros({2}, unit.options().dtype(at::kDouble));
  const Scratch scratch(ROWS * std::max<int64_t>(all.tokens, 1), unit);
  const int64_t blocks = (all.tokens + ROWS - 1) / ROWS;
  std::mutex adding;

  // a long block of the beginning goes with a short one of the end, so that threads have equal shares
  at::parallel_for(0, (blocks + 1) / 2, 1, [&](int64_t begin, int64_t end) {
    Counts raw(bins), centred(bins);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t mirrored = blocks - 1 - block;
      count_block(all, block * ROWS, scratch.mine(), raw, centred);
      if (mirrored != block) count_block(all, mirrored * ROWS, scratch.mine(), raw, centred);
    }
    const std::lock_guard<std::mutex> guard(adding);
    int64_t* const into = counts.mutable_data_ptr<int64_t>();
    double* const total = sums.mutable_data_ptr<double>();
    raw.add_to(into, total[0]);
    centred.add_to(into + bins, total[1]);
  });
  return {counts, sums};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(uncollapse_native, m) {
  m.def("count_pairs(Tensor unit, Tensor share, Tensor inverse, Tensor common, *, int bins) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(uncollapse_native, CPU, m) { m.impl("count_pairs", &count_pairs); }
