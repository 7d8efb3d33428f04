// Matrices, vectors and scratch memory that the sources of this folder share. Float32, row-major.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

// The BLAS that libtorch_cpu itself uses; at::native::cpublas::gemm is not exported.
extern "C" void sgemm_(
    const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
    const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

namespace {

using at::Tensor;
using Vec = at::vec::Vectorized<float>;

constexpr float INF = std::numeric_limits<float>::infinity();

struct Matrix {
  const float* data;
  int64_t ld;
  Matrix from(int64_t row) const { return {data + row * ld, ld}; }
};

struct MutableMatrix {
  float* data;
  int64_t ld;
  MutableMatrix from(int64_t row) const { return {data + row * ld, ld}; }
  operator Matrix() const { return {data, ld}; }
};

enum class Op : char { plain = 'N', transposed = 'T' };

// c (m, n) = alpha op(a) (m, k) op(b) (k, n) + beta c, all row-major; beta = 0 never reads c.
void product(
    Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, float alpha, Matrix a, Matrix b, float beta, MutableMatrix c) {
  const int rows = m, columns = n, inner = k, lda = a.ld, ldb = b.ld, ldc = c.ld;
  const char ta = static_cast<char>(op_a), tb = static_cast<char>(op_b);
  sgemm_(&tb, &ta, &columns, &rows, &inner, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
}

template <typename F>
inline void by_vectors(int64_t n, const F& f) {  // f(offset, count), count <= Vec::size()
  int64_t j = 0;
  for (; j + Vec::size() <= n; j += Vec::size()) f(j, static_cast<int>(Vec::size()));
  if (j < n) f(j, static_cast<int>(n - j));
}

inline Vec load(const float* p, int count) { return count == Vec::size() ? Vec::loadu(p) : Vec::loadu(p, count); }

inline Vec or_else(const Vec& value, float other, int count) {  // `other` in the lanes that hold no entry
  return count == Vec::size() ? value : Vec::set(Vec(other), value, count);
}

float largest(const Vec& lanes) {  // NaN if there is one
  float values[Vec::size()];
  lanes.store(values);
  float best = values[0];
  for (int i = 1; i < Vec::size(); ++i) {
    if (values[i] > best || std::isnan(values[i])) best = values[i];
  }
  return best;
}

float total(const Vec& lanes) {
  float values[Vec::size()], sum = 0.0f;
  lanes.store(values);
  for (float value : values) sum += value;
  return sum;
}

float row_max(const float* x, int64_t n) {
  Vec best(-INF);
  by_vectors(n, [&](int64_t j, int count) { best = at::vec::maximum(best, or_else(load(x + j, count), -INF, count)); });
  return largest(best);
}

Tensor as_float(const Tensor& t) {
  const Tensor wide = t.scalar_type() == at::kFloat ? t : t.to(at::kFloat);
  const bool rows_apart = wide.stride(2) >= wide.size(3) || wide.size(2) <= 1;
  return wide.stride(3) == 1 && rows_apart ? wide : wide.contiguous();
}

int64_t leading(const Tensor& t) { return std::max<int64_t>(t.size(2) > 1 ? t.stride(2) : t.size(3), 1); }

Matrix head(const Tensor& t, int64_t b, int64_t h) {
  return {t.const_data_ptr<float>() + b * t.stride(0) + h * t.stride(1), leading(t)};
}

class Scratch {  // a run of floats for each thread
 public:
  Scratch(int64_t size, const Tensor& like)
      : size_((size + 15) / 16 * 16),
        memory_(at::empty({at::get_num_threads() * size_}, like.options().dtype(at::kFloat))) {}
  float* mine() const { return memory_.mutable_data_ptr<float>() + at::get_thread_num() * size_; }

 private:
  int64_t size_;
  Tensor memory_;
};

}  // namespace
