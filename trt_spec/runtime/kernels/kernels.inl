// The arithmetic of a step, written once over vectors V of W floats that an instruction set defines.
//
// Every sum has one order, whatever the number of rows beside it: a row's result is the same to the bit in a step of
// one row and in a step of many, fed as a chain or as a branch of a tree.

namespace {

constexpr int P = 2 * W;          // outputs of a panel
constexpr int CHUNK = 256;        // inputs that are unpacked at a time where many rows share them
constexpr int MAX_ROWS = 96;      // rows that share one reading of a panel

constexpr int DIRECT = 18;     // rows up to which weights go through registers, without a buffer: three passes of 6
constexpr int TOKENS = 64;        // cached tokens of one step of the running softmax

static inline V exp_(V x) {  // within 2 units in the last place; NaN stays
    x = min_(set1(88.0f), max_(set1(-87.0f), x));
    const V n = round_(mul(x, set1(1.44269504f)));
    V r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    V p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set1(1.0f)));
    return mul(p, pow2(n));
}

static inline V silu(V x) { return div(x, add(set1(1.0f), exp_(sub(zero(), x)))); }

static inline float sum(V x) {
    const __m256 f = fold(x);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256 sums(const V a[8]) {  // the sum of each of eight vectors
    const __m256 t0 = _mm256_hadd_ps(fold(a[0]), fold(a[1])), t1 = _mm256_hadd_ps(fold(a[2]), fold(a[3]));
    const __m256 t2 = _mm256_hadd_ps(fold(a[4]), fold(a[5])), t3 = _mm256_hadd_ps(fold(a[6]), fold(a[7]));
    const __m256 u0 = _mm256_hadd_ps(t0, t1), u1 = _mm256_hadd_ps(t2, t3);
    return _mm256_add_ps(_mm256_permute2f128_ps(u0, u1, 0x20), _mm256_permute2f128_ps(u0, u1, 0x31));
}

// ---- Linear layers ----

template <int F> struct Row {  // 2 W weights of one input
    static constexpr int bytes = F == F32 ? 4 * P : 2 * P;
    static inline void get(const uint8_t* at, V& low, V& high) {
        if (F == BF16) {
            const I both = load_i(at);
            low = low_bf16(both), high = high_bf16(both);
        } else if (F == F16) {
            low = from_f16((const uint16_t*)at), high = from_f16((const uint16_t*)at + W);
        } else {
            low = load((const float*)at), high = load((const float*)at + W);
        }
    }
};

template <int R> static inline void step(V a[R][2], V low, V high, const float* x, int64_t xs) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const V b = set1(x[r * xs]);
        a[r][0] = fma(b, low, a[r][0]), a[r][1] = fma(b, high, a[r][1]);
    }
}

// A long sum is one of sums over CHUNK inputs: that rounds less than one running sum.
template <int R> static inline void add_up(float* sums, V a[R][2], bool is_first) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        store(sums + r * P, is_first ? a[r][0] : add(load(sums + r * P), a[r][0]));
        store(sums + r * P + W, is_first ? a[r][1] : add(load(sums + r * P + W), a[r][1]));
    }
}

// R rows through one panel; sums [R, P].
template <int F, int R> static void direct(const Packed& w, int panel, const float* x, int64_t xs, float* sums) {
    const int K = w.in_features;
    const uint8_t* at = (const uint8_t*)w.panels + (int64_t)panel * K * Row<F>::bytes;
    V a[R][2];
    for (int k = 0; k < K;) {
        const int end = k + CHUNK < K ? k + CHUNK : K, start = k;
        for (int r = 0; r < R; r++) a[r][0] = a[r][1] = zero();
        for (; k < end; k++, at += Row<F>::bytes) {
            V low, high;
            Row<F>::get(at, low, high);
            __builtin_prefetch(at + 1024);
            step<R>(a, low, high, x + k, xs);
        }
        add_up<R>(sums, a, start == 0);
    }
}

// Inputs [k, k + count) of a panel as floats [count, P].
template <int F> static void unpack(const Packed& w, int panel, int k, int count, float* out) {
    const uint8_t* at = (const uint8_t*)w.panels + ((int64_t)panel * w.in_features + k) * Row<F>::bytes;
    for (int i = 0; i < count; i++, at += Row<F>::bytes) {
        V low, high;
        Row<F>::get(at, low, high);
        __builtin_prefetch(at + 1024);
        store(out + i * P, low), store(out + i * P + W, high);
    }
}

// sums [R, P] += x [R, count] · weights [count, P].
template <int R>
static void block(const float* weights, const float* x, int64_t xs, int count, bool is_first, float* sums) {
    V a[R][2];
    for (int r = 0; r < R; r++) a[r][0] = a[r][1] = zero();
    for (int k = 0; k < count; k++) step<R>(a, load(weights + k * P), load(weights + k * P + W), x + k, xs);
    add_up<R>(sums, a, is_first);
}

template <int F> static void direct_rows(const Packed& w, int panel, const float* x, int64_t xs, int rows, float* sums) {
    switch (rows) {
        case 1: return direct<F, 1>(w, panel, x, xs, sums);
        case 2: return direct<F, 2>(w, panel, x, xs, sums);
        case 3: return direct<F, 3>(w, panel, x, xs, sums);
        case 4: return direct<F, 4>(w, panel, x, xs, sums);
        case 5: return direct<F, 5>(w, panel, x, xs, sums);
        case 6: return direct<F, 6>(w, panel, x, xs, sums);
    }
}

template <int F> static void panel_sums(const Packed& w, int panel, const float* x, int64_t xs, int rows, float* sums) {
    if (rows <= DIRECT) {
        const int passes = (rows + 5) / 6;
        for (int pass = 0, r = 0; pass < passes; pass++) {
            const int count = (rows - r + passes - pass - 1) / (passes - pass);
            direct_rows<F>(w, panel, x + r * xs, xs, count, sums + r * P);
            r += count;
        }
        return;
    }
    alignas(64) float weights[CHUNK * P];
    const int K = w.in_features;
    for (int k = 0; k < K; k += CHUNK) {
        const int count = K - k < CHUNK ? K - k : CHUNK;
        unpack<F>(w, panel, k, count, weights);
        int r = 0;
        for (; r + 6 <= rows; r += 6) block<6>(weights, x + r * xs + k, xs, count, k == 0, sums + r * P);
        const float* rest = x + r * xs + k;
        switch (rows - r) {
            case 1: block<1>(weights, rest, xs, count, k == 0, sums + r * P); break;
            case 2: block<2>(weights, rest, xs, count, k == 0, sums + r * P); break;
            case 3: block<3>(weights, rest, xs, count, k == 0, sums + r * P); break;
            case 4: block<4>(weights, rest, xs, count, k == 0, sums + r * P); break;
            case 5: block<5>(weights, rest, xs, count, k == 0, sums + r * P); break;
        }
    }
}

static inline void put(float* y, V x, int count, bool adds) {  // up to W values
    if (count >= W) return store(y, adds ? add(load(y), x) : x);
    alignas(64) float lanes[W];
    store(lanes, x);
    for (int i = 0; i < count; i++) y[i] = adds ? y[i] + lanes[i] : lanes[i];
}

static void linear(const Packed& w, int epilogue, const float* x, int64_t xs, float* y, int64_t ys, int rows, int first_panel, int last_panel) {
    alignas(64) float sums[MAX_ROWS * P];
    const int width = w.is_gated ? W : P;
    for (int r0 = 0; r0 < rows; r0 += MAX_ROWS) {
        const int count = rows - r0 < MAX_ROWS ? rows - r0 : MAX_ROWS;
        const float* from = x + r0 * xs;
        for (int panel = first_panel; panel < last_panel; panel++) {
            switch (w.format) {
                case BF16: panel_sums<BF16>(w, panel, from, xs, count, sums); break;
                case F16: panel_sums<F16>(w, panel, from, xs, count, sums); break;
                default: panel_sums<F32>(w, panel, from, xs, count, sums);
            }
            const float* bias = w.bias ? w.bias + panel * P : 0;
            const int left = w.out_features - panel * width;
            for (int r = 0; r < count; r++) {
                V low = load(sums + r * P), high = load(sums + r * P + W);
                if (bias) low = add(low, load(bias)), high = add(high, load(bias + W));
                float* to = y + (r0 + r) * ys + panel * width;
                if (w.is_gated) {
                    put(to, mul(silu(low), high), left, false);
                } else {
                    put(to, low, left, epilogue == ADD);
                    if (left > W) put(to + W, high, left - W, epilogue == ADD);
                }
            }
        }
    }
}

// ---- Norm, rotation, cache ----

static void rms_norm(const float* x, const float* weight, float eps, int size, float* y) {
    V squares = zero();
    int i = 0;
    for (; i + W <= size; i += W) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < size; i++) total += x[i] * x[i];
    const float factor = 1.0f / __builtin_sqrtf(total / size + eps);
    for (i = 0; i + W <= size; i += W) store(y + i, mul(mul(load(x + i), set1(factor)), load(weight + i)));
    for (; i < size; i++) y[i] = x[i] * factor * weight[i];
}

static void rope(float* x, const float* cos, const float* sin, int dim) {  // the first half of sin is negated
    const int half = dim / 2;
    for (int i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] + b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

static inline uint16_t to_bf16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    if (x != x) return (bits >> 16) | 64;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static void to_cache(const float* x, int format, void* rows, int64_t offset, int count) {
    if (format == F32) {
        __builtin_memcpy((float*)rows + offset, x, 4 * count);
        return;
    }
    uint16_t* to = (uint16_t*)rows + offset;
    int i = 0;
    if (format == BF16) {
        for (; i < count; i++) to[i] = to_bf16(x[i]);
        return;
    }
    for (; i + W <= count; i += W) to_f16(to + i, load(x + i));
    for (; i < count; i++) to[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}

template <int F> static inline void from_cache(const void* rows, int64_t offset, int count, int padded, float* to) {
    int i = 0;
    if (F == F32) {
        const float* from = (const float*)rows + offset;
        for (; i + W <= count; i += W) store(to + i, load(from + i));
        for (; i < count; i++) to[i] = from[i];
    } else {
        const uint16_t* from = (const uint16_t*)rows + offset;
        for (; i + W <= count; i += W) store(to + i, F == BF16 ? from_bf16(from + i) : from_f16(from + i));
        for (; i < count; i++) {
            const uint32_t bits = (uint32_t)from[i] << 16;
            if (F == BF16) __builtin_memcpy(to + i, &bits, 4);
            else to[i] = _cvtsh_ss(from[i]);
        }
    }
    for (; i < padded; i++) to[i] = 0;
}

template <int F> static inline void fetch(const void* rows, int64_t offset, int count) {
    constexpr int size = F == F32 ? 4 : 2;
    for (int i = 0; i < count * size; i += 64) __builtin_prefetch((const uint8_t*)rows + offset * size + i);
}

// ---- Attention ----

// One step of the running softmax of a query over `count` tokens at keys and values [TOKENS, width].
struct Running { float top, total; };

static void scores_of(const float* q, const float* keys, int count, int width, float* scores) {
    for (int t = 0; t < count; t += 8) {
        V a[8];
        for (int i = 0; i < 8; i++) a[i] = zero();
        for (int d = 0; d < width; d += W) {
            const V b = load(q + d);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) a[i] = fma(b, load(keys + (t + i) * width + d), a[i]);
        }
        _mm256_storeu_ps(scores + t, sums(a));
    }
}

static float softmax_step(float* scores, int count, Running& run) {  // scores become weights; returns what shrinks the past
    float top = run.top;
    for (int t = 0; t < count; t++) top = scores[t] < top ? top : scores[t];  // NaN wins
    for (int t = count; t % W; t++) scores[t] = top;
    const float shrink = run.total == 0 ? 0 : ({
        alignas(64) float lanes[W];
        store(lanes, exp_(set1(run.top - top)));
        lanes[0];
    });
    V totals = zero();
    for (int t = 0; t < count; t += W) {
        store(scores + t, exp_(sub(load(scores + t), set1(top))));
        for (int i = count; i < t + W; i++) scores[i] = 0;
        totals = add(totals, load(scores + t));
    }
    run.top = top;
    run.total = __builtin_fmaf(run.total, shrink, sum(totals));
    return shrink;
}

template <int N> static void add_values(const float* weights, const float* values, int count, int width, float shrink, float* out) {
    V a[N];
    for (int i = 0; i < N; i++) a[i] = mul(load(out + i * W), set1(shrink));
    for (int t = 0; t < count; t++) {
        const V b = set1(weights[t]);
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) a[i] = fma(b, load(values + t * width + i * W), a[i]);
    }
    for (int i = 0; i < N; i++) store(out + i * W, a[i]);
}

template <int F> static void attend_(const Stack& stack, const Step& step, const float* q, int64_t qs, const void* cache, int kv_head, int first_row, int last_row, float* out, int64_t outs) {
    const int D = stack.head_dim, width = (D + W - 1) / W * W, group = stack.num_heads / stack.num_kv_heads;
    const int num_queries = (last_row - first_row) * group;
    const int64_t base = step.slot_starts[first_row], row_width = step.cache_width;
    const int64_t key_at = (int64_t)kv_head * D, value_at = key_at + (int64_t)stack.num_kv_heads * D;
    float queries[num_queries * width] __attribute__((aligned(64))), acc[num_queries * width] __attribute__((aligned(64)));
    float tokens[TOKENS * width] __attribute__((aligned(64))), scores[num_queries * TOKENS] __attribute__((aligned(64)));
    float shrinks[num_queries];
    Running runs[num_queries];
    int common = 0x7fffffff;
    for (int row = first_row; row < last_row; row++) {
        if (step.prefixes[row] < common) common = step.prefixes[row];
        for (int g = 0; g < group; g++) {
            const int at = (row - first_row) * group + g;
            const float* from = q + row * qs + (int64_t)(kv_head * group + g) * D;
            for (int d = 0; d < width; d++) queries[at * width + d] = d < D ? from[d] * stack.scale : 0, acc[at * width + d] = 0;
            runs[at].top = -__builtin_inff(), runs[at].total = 0;
        }
    }
    common -= common % TOKENS;

    // Tokens [start, start + count) of what `row` sees, for queries [first, last).
    auto over = [&](int row, int start, int count, int first, int last) {
        const int prefix = step.prefixes[row];
        const int first_extra = step.extra_starts[row] - prefix;
        auto place = [&](int i) { return base + (start + i < prefix ? start + i : step.extras[first_extra + start + i]); };
        for (int i = 0; i < count; i++) {
            const int64_t row = place(i) * row_width;
            fetch<F>(cache, row + value_at, D);
            from_cache<F>(cache, row + key_at, D, width, tokens + i * width);
        }
        for (int i = count * width; i < (count + 7) / 8 * 8 * width; i++) tokens[i] = 0;
        for (int at = first; at < last; at++) {
            scores_of(queries + at * width, tokens, count, width, scores + at * TOKENS);
            shrinks[at] = softmax_step(scores + at * TOKENS, count, runs[at]);
        }
        for (int i = 0; i < count; i++) {
            const int64_t row = place(i) * row_width;
            fetch<F>(cache, row + TOKENS * row_width + key_at, D);  // of the next step; past the end it is only a hint
            from_cache<F>(cache, row + value_at, D, width, tokens + i * width);
        }
        for (int at = first; at < last; at++) {
            int d = 0;
            for (; d + 8 * W <= width; d += 8 * W) add_values<8>(scores + at * TOKENS, tokens + d, count, width, shrinks[at], acc + at * width + d);
            for (; d + 4 * W <= width; d += 4 * W) add_values<4>(scores + at * TOKENS, tokens + d, count, width, shrinks[at], acc + at * width + d);
            for (; d < width; d += W) add_values<1>(scores + at * TOKENS, tokens + d, count, width, shrinks[at], acc + at * width + d);
        }
    };
    for (int start = 0; start < common; start += TOKENS) over(first_row, start, TOKENS, 0, num_queries);
    for (int row = first_row; row < last_row; row++) {
        const int visible = step.prefixes[row] + step.extra_starts[row + 1] - step.extra_starts[row];
        for (int start = common; start < visible; start += TOKENS)
            over(row, start, visible - start < TOKENS ? visible - start : TOKENS, (row - first_row) * group, (row - first_row + 1) * group);
        for (int g = 0; g < group; g++) {
            const int at = (row - first_row) * group + g;
            float* to = out + row * outs + (int64_t)(kv_head * group + g) * D;
            for (int d = 0; d < D; d++) to[d] = acc[at * width + d] / runs[at].total;
        }
    }
}

static void attend(const Stack& stack, const Step& step, const float* q, int64_t qs, const void* cache, int kv_head, int first_row, int last_row, float* out, int64_t outs) {
    switch (step.cache_format) {
        case BF16: return attend_<BF16>(stack, step, q, qs, cache, kv_head, first_row, last_row, out, outs);
        case F16: return attend_<F16>(stack, step, q, qs, cache, kv_head, first_row, last_row, out, outs);
        default: return attend_<F32>(stack, step, q, qs, cache, kv_head, first_row, last_row, out, outs);
    }
}

}  // namespace

extern "C" const Kernels KERNELS = {W, linear, rms_norm, rope, to_cache, attend};
