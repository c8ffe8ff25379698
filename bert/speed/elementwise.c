/* Loops of bert/speed/elementwise.py over rows of n values, each row by one thread; bert/speed/native.py compiles them.

   Layer normalization: Ba et al. 2016, arXiv 1607.06450. GELU: Hendrycks and Gimpel 2016, arXiv 1606.08415.
   The file includes itself, once for each type T of what linear layers give. */
#ifndef T

#include <float.h>
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

/* Of -0 too. */
static inline int is_negative(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (int)(bits >> 31);
}

/* Integers in the order of floats, of which processors find the greatest faster. */
static inline int32_t ordered(float value)
{
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

static inline float from_ordered(int32_t order)
{
    int32_t bits = order ^ ((order >> 31) & 0x7fffffff);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* e^x of x <= 0, 0 below the normal numbers: 2^k by the exponent's bits, e^r of r = x - k ln 2, |r| <= ln 2 / 2, by the
   first 7 terms of its series; 3e-7 off at most. */
static inline float exp_negative(float x)
{
    x = x < -88.0296919f ? -88.0296919f : x; /* -127 ln 2 */
    float k = floorf(x * 1.44269504f + 0.5f);
    /* ln 2 in two parts. Calls, since sums may be put in another order. */
    float r = fmaf(k, 1.90465432e-9f, fmaf(k, -0.693147182f, x));
    float series = 1.38888889e-3f;
    series = series * r + 8.33333333e-3f;
    series = series * r + 4.16666667e-2f;
    series = series * r + 1.66666667e-1f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)k + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return series * scale;
}

#define BLOCKS 16 /* of Philox at once, each of four words */

/* Random levels of `count` elements: Philox4x32-10 of Salmon et al. 2011 (Parallel random numbers: as easy as 1, 2, 3),
   counters from 0. Word w of a batch of 16 blocks begins at its level 32 w; the threads change nothing. */
void random_levels(long count, long threads, uint64_t key, int16_t *levels)
{
    const long batch = 8 * BLOCKS, batches = (count + batch - 1) / batch;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long number = 0; number < batches; number++) {
        uint32_t words[4][BLOCKS], first = (uint32_t)key, second = (uint32_t)(key >> 32);
        for (int i = 0; i < BLOCKS; i++) {
            uint64_t counter = (uint64_t)number * BLOCKS + i;
            words[0][i] = (uint32_t)counter;
            words[1][i] = (uint32_t)(counter >> 32);
            words[2][i] = words[3][i] = 0;
        }
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < BLOCKS; i++) {
                uint64_t even = (uint64_t)words[0][i] * 0xd2511f53u, odd = (uint64_t)words[2][i] * 0xcd9e8d57u;
                words[0][i] = (uint32_t)(odd >> 32) ^ words[1][i] ^ first;
                words[1][i] = (uint32_t)odd;
                words[2][i] = (uint32_t)(even >> 32) ^ words[3][i] ^ second;
                words[3][i] = (uint32_t)even;
            }
            first += 0x9e3779b9u;
            second += 0xbb67ae85u;
        }
        long left = count - number * batch;
        memcpy(levels + number * batch, words, 2 * (left < batch ? left : batch));
    }
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
    for (long i = 0; i < n; i++) {
        float own = LOAD(x[i]);
        float value = residual[i] + (drops ? (level[i] >= threshold ? own * scale : 0.0f) : own);
        wide[i] = value;
        sum += value;
    }
    float middle = sum / n;
    for (long i = 0; i < n; i++) {
        float centered = wide[i] - middle;
        squares += centered * centered;
    }
    float steep = 1.0f / sqrtf(squares / n + eps);
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
    long rows, long n, long threads, const T *x, const float *residual, const int16_t *levels, long threshold,
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
    for (long i = 0; i < n; i++) {
        float grad = (grad_residual[i] - sum - normed[i] * along) * inverse;
        grad_residual[i] = grad;
        grad_x[i] = STORE(drops ? (level[i] >= threshold ? grad * scale : 0.0f) : grad);
    }
}

/* sums [threads, 3, n]: gradients of weight and bias from the rows of each thread, zeros before; and n for its use. */
void NAME(norm_backward)(
    long rows, long n, long threads, const float *grad_wide, const T *grad_narrow, const T *x, const float *residual,
    const int16_t *levels, long threshold, float scale, const float *weight, const float *mean, const float *inverse,
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
void NAME(gelu_backward)(long count, long threads, const T *restrict grad, const T *restrict x, T *restrict grad_x)
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

/* One row of softmax(scores factor) where allowed, and of what dropout keeps of it, times scale. The weights that are
   dropped get their sign bit set. Where nothing is allowed all weights are equal. */
static inline void NAME(softmax_row)(
    long n, int masks, int drops, const T *restrict scores, const uint8_t *restrict allowed, float factor,
    const int16_t *restrict level, int threshold, float scale, float *restrict weights, T *restrict kept)
{
    int32_t order = INT32_MIN;
    for (long i = 0; i < n; i++) {
        float value = LOAD(scores[i]) * factor;
        if (masks)
            value = allowed[i] ? value : -FLT_MAX;
        weights[i] = value;
        int32_t own = ordered(value);
        order = own > order ? own : order;
    }
    float most = from_ordered(order), sum = 0.0f;
    for (long i = 0; i < n; i++) {
        float value = exp_negative(weights[i] - most);
        weights[i] = value;
        sum += value;
    }
    float part = 1.0f / sum;
    for (long i = 0; i < n; i++) {
        float value = weights[i] * part;
        int keeps = drops ? level[i] >= threshold : 1;
        weights[i] = keeps ? value : -value;
        kept[i] = STORE(keeps ? value * scale : 0.0f);
    }
}

/* scores, weights and kept [sequences, heads, n, n], rows of n of them all; levels is NULL without dropout. allowed is
   [sequences, n], NULL where all may be attended to. */
void NAME(softmax_forward)(
    long rows, long n, long threads, const T *scores, const uint8_t *allowed, long heads, float factor,
    const int16_t *levels, long threshold, float scale, float *weights, T *kept)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < rows; row++) {
        long at = row * n;
        const uint8_t *own = allowed ? allowed + row / (heads * n) * n : allowed;
        if (levels && own)
            NAME(softmax_row)(n, 1, 1, scores + at, own, factor, levels + at, threshold, scale, weights + at, kept + at);
        else if (levels)
            NAME(softmax_row)(n, 0, 1, scores + at, own, factor, levels + at, threshold, scale, weights + at, kept + at);
        else
            NAME(softmax_row)(n, own != 0, 0, scores + at, own, factor, levels, threshold, scale, weights + at, kept + at);
    }
}

/* Of rows of n: in grad, the gradient of what was kept, that of the scores takes its place; and what was kept again. */
void NAME(softmax_backward)(
    long rows, long n, long threads, T *restrict grad, const float *restrict weights, float factor, float scale,
    T *restrict kept)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < rows; row++) {
        long begin = row * n, end = begin + n;
        float along = 0.0f;
        for (long i = begin; i < end; i++)
            along += is_negative(weights[i]) ? 0.0f : LOAD(grad[i]) * weights[i];
        along *= scale;
        for (long i = begin; i < end; i++) {
            int keeps = !is_negative(weights[i]);
            float value = fabsf(weights[i]), own = keeps ? LOAD(grad[i]) * scale : 0.0f;
            grad[i] = STORE(value * (own - along) * factor);
            kept[i] = STORE(keeps ? value * scale : 0.0f);
        }
    }
}

#endif
