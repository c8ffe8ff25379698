/* Loops of bert/elementwise.py over rows of n values, each row by one thread; bert/native.py compiles them.

   Layer normalization: Ba et al. 2016, arXiv 1607.06450. GELU: Hendrycks and Gimpel 2016, arXiv 1606.08415.
   The file includes itself, once for each type T of what linear layers give. */
#ifndef T

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

typedef uint16_t bf16;

static inline float from_bf16(bf16 value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}

/* To the nearest, ties to even; not a number stays so. */
static inline bf16 to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bf16 nearest = (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return value != value ? 0x7fc0 : nearest;
}

/* e^x of x <= 0: 2^k by the exponent's bits, 2^f of |f| <= 1/2 by the first 7 terms of its series, 2e-7 off at most. */
static inline float exp_negative(float x)
{
    float power = x * 1.44269504f;
    power = power < -126.0f ? -126.0f : power;
    float k = floorf(power + 0.5f), f = power - k;
    float series = 1.5403530e-4f;
    series = series * f + 1.3333558e-3f;
    series = series * f + 9.6181291e-3f;
    series = series * f + 5.5504109e-2f;
    series = series * f + 2.4022651e-1f;
    series = series * f + 6.9314718e-1f;
    series = series * f + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)k + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return series * scale;
}

#define T bf16
#define NAME(function) function##_bf16
#define LOAD from_bf16
#define STORE to_bf16
#define TWICE 1 /* results and gradients in float32 and in T */
#include __FILE__
#undef T
#undef NAME
#undef LOAD
#undef STORE
#undef TWICE

#define T float
#define NAME(function) function##_float
#define LOAD
#define STORE
#define TWICE 0
#include __FILE__

#else

/* One row of LayerNorm(residual + x scale [level >= threshold]). */
static inline void NAME(forward_row)(
    long n, int drops, const T *restrict x, const float *restrict residual, const int16_t *restrict level,
    int threshold, float scale, float eps, const float *restrict weight, const float *restrict bias,
    float *restrict wide, T *restrict narrow, float *mean, float *inverse)
{
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) {
        float own = LOAD(x[i]);
        float value = residual[i] + (drops ? (level[i] >= threshold ? own * scale : 0.0f) : own);
        wide[i] = value;
        sum += value;
    }
    float middle = sum / n;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < n; i++) {
        float centred = wide[i] - middle;
        squares += centred * centred;
    }
    float steep = 1.0f / sqrtf(squares / n + eps);
#pragma omp simd
    for (long i = 0; i < n; i++) {
        float value = (wide[i] - middle) * steep * weight[i] + bias[i];
        wide[i] = value;
        if (TWICE)
            narrow[i] = STORE(value);
    }
    *mean = middle;
    *inverse = steep;
}

/* levels is NULL without dropout, narrow where T is float. */
void NAME(norm_forward)(
    long rows, long n, int threads, const T *x, const float *residual, const int16_t *levels, int threshold,
    float scale, float eps, const float *weight, const float *bias, float *wide, T *narrow, float *mean, float *inverse)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < rows; row++) {
        long at = row * n;
        T *low = TWICE ? narrow + at : (T *)0;
        if (levels)
            NAME(forward_row)(n, 1, x + at, residual + at, levels + at, threshold, scale, eps, weight, bias,
                              wide + at, low, mean + row, inverse + row);
        else
            NAME(forward_row)(n, 0, x + at, residual + at, levels, threshold, scale, eps, weight, bias,
                              wide + at, low, mean + row, inverse + row);
    }
}

/* One row of the gradients; those of weight and bias are added to sums. */
static inline void NAME(backward_row)(
    long n, int drops, const float *restrict grad_wide, const T *restrict grad_narrow, const T *restrict x,
    const float *restrict residual, const int16_t *restrict level, int threshold, float scale,
    const float *restrict weight, float mean, float inverse, T *restrict grad_x, float *restrict grad_residual,
    float *restrict weight_sums, float *restrict bias_sums, float *restrict normed)
{
    float sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
    for (long i = 0; i < n; i++) {
        float own = LOAD(x[i]), grad = grad_wide[i];
        if (TWICE)
            grad += LOAD(grad_narrow[i]);
        float value = residual[i] + (drops ? (level[i] >= threshold ? own * scale : 0.0f) : own);
        value = (value - mean) * inverse;
        bias_sums[i] += grad;
        weight_sums[i] += grad * value;
        grad *= weight[i];
        sum += grad;
        along += grad * value;
        normed[i] = value;
        grad_residual[i] = grad;
    }
    sum /= n;
    along /= n;
#pragma omp simd
    for (long i = 0; i < n; i++) {
        float grad = (grad_residual[i] - sum - normed[i] * along) * inverse;
        grad_residual[i] = grad;
        grad_x[i] = STORE(drops ? (level[i] >= threshold ? grad * scale : 0.0f) : grad);
    }
}

/* sums [threads, 3, n]: gradients of weight and bias from the rows of each thread, zeros before; and n for its use. */
void NAME(norm_backward)(
    long rows, long n, int threads, const float *grad_wide, const T *grad_narrow, const T *x, const float *residual,
    const int16_t *levels, int threshold, float scale, const float *weight, const float *mean, const float *inverse,
    T *grad_x, float *grad_residual, float *sums)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < rows; row++) {
        long at = row * n;
        float *own = sums + 3 * n * omp_get_thread_num();
        const T *low = TWICE ? grad_narrow + at : (const T *)0;
        if (levels)
            NAME(backward_row)(n, 1, grad_wide + at, low, x + at, residual + at, levels + at, threshold, scale,
                               weight, mean[row], inverse[row], grad_x + at, grad_residual + at, own, own + n,
                               own + 2 * n);
        else
            NAME(backward_row)(n, 0, grad_wide + at, low, x + at, residual + at, levels, threshold, scale,
                               weight, mean[row], inverse[row], grad_x + at, grad_residual + at, own, own + n,
                               own + 2 * n);
    }
}

/* grad_x = grad (Phi(x) + x phi(x)). Phi(-|x|) = t (a1 + t (a2 + ...)) e^(-x^2/2) / 2 with t = 1 / (1 + p |x| / sqrt 2)
   is formula 7.1.26 of Abramowitz and Stegun, 8e-8 off at most, which PyTorch's own kernel uses too. */
void NAME(gelu_backward)(long count, int threads, const T *restrict grad, const T *restrict x, T *restrict grad_x)
{
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; i++) {
        float value = LOAD(x[i]);
        float density = exp_negative(-0.5f * value * value);
        float t = 1.0f / (1.0f + 0.231641888f * fabsf(value));
        float series = t * 1.061405429f - 1.453152027f;
        series = t * series + 1.421413741f;
        series = t * series - 0.284496736f;
        series = t * series + 0.254829592f;
        float tail = 0.5f * t * series * density;
        float below = value < 0.0f ? tail : 1.0f - tail;
        grad_x[i] = STORE(LOAD(grad[i]) * (below + 0.398942280f * value * density));
    }
}

#endif
