// Packing, threads, and the order of a step.
#include "kernels.h"

#include <atomic>
#include <new>
#include <cstdlib>
#include <cstring>

#include <cpuid.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

typedef void (*ParallelFn)(void (*)(void*), void*, unsigned, unsigned);
ParallelFn gomp_parallel;  // GOMP_parallel of the OpenMP library that torch runs on
const Kernels* active;

inline void pause_() { __builtin_ia32_pause(); }

// Phases of a step: pieces that any thread may take. A phase is over when its pieces are done, not when every thread has
// come by: a thread that the host took away holds up the others only while it holds a piece.
struct Counter {
    alignas(64) std::atomic<int> next;
    alignas(64) std::atomic<int> done;
};

struct Crew {
    Counter* counters;
    int phase = 0;

    template <class Work> void run(int pieces, Work work) {
        Counter& counter = counters[phase++];
        int mine = 0;
        for (int piece; (piece = counter.next.fetch_add(1, std::memory_order_relaxed)) < pieces; mine++) work(piece);
        int done = mine ? counter.done.fetch_add(mine, std::memory_order_acq_rel) + mine : counter.done.load(std::memory_order_acquire);
        if (mine && done == pieces) {
            syscall(SYS_futex, (int*)&counter.done, FUTEX_WAKE_PRIVATE, 1 << 20, nullptr, nullptr, 0);
            return;
        }
        for (int spins = 0; done < pieces; done = counter.done.load(std::memory_order_acquire)) {
            if (++spins < 4000) pause_();
            else syscall(SYS_futex, (int*)&counter.done, FUTEX_WAIT_PRIVATE, done, nullptr, nullptr, 0);
        }
    }
};

struct PanelRange { int first, last; };

// Pieces of a linear layer: fewer, larger ones than panels, a few for each thread.
struct Pieces {
    int panels, size, count;
    Pieces(int panels, int threads) : panels(panels) {
        size = panels / (threads * 6);
        if (size < 1) size = 1;
        count = (panels + size - 1) / size;
    }
    PanelRange at(int piece) const { return {piece * size, (piece + 1) * size < panels ? (piece + 1) * size : panels}; }
};

struct Job {
    void (*body)(void*, Crew&, int threads);
    void* data;
    Counter* counters;
    int threads;
};

void entry(void* raw) {
    Job& job = *(Job*)raw;
    Crew crew{job.counters};
    job.body(job.data, crew, job.threads);
}

void parallel(int threads, int phases, void (*body)(void*, Crew&, int), void* data) {
    Counter* counters = (Counter*)aligned_alloc(64, sizeof(Counter) * phases);
    for (int i = 0; i < phases; i++) new (&counters[i]) Counter{{0}, {0}};
    Job job{body, data, counters, threads};
    if (threads > 1) gomp_parallel(entry, &job, threads, 0);
    else entry(&job);
    free(counters);
}

struct LinearCall { const Packed* w; const float* x; float* y; int rows; };

void linear_phase(Crew& crew, int threads, const Packed& w, int epilogue, const float* x, int64_t xs, float* y, int64_t ys, int rows) {
    const Pieces pieces(w.num_panels, threads);
    crew.run(pieces.count, [&](int piece) {
        const PanelRange range = pieces.at(piece);
        active->linear(w, epilogue, x, xs, y, ys, rows, range.first, range.last);
    });
}

struct ForwardCall {
    const Stack* stack;
    const Step* step;
    int num_blocks;
    int* block_starts;  // first row of each block of rows that attend together; [num_blocks + 1]
};

int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

void forward(void* raw, Crew& crew, int threads) {
    const ForwardCall& call = *(ForwardCall*)raw;
    const Stack& s = *call.stack;
    const Step& step = *call.step;
    const int N = step.num_rows, H = s.hidden_size, D = s.head_dim;
    const int64_t q_width = (int64_t)s.num_heads * D, kv_width = (int64_t)s.num_kv_heads * D, qkv_width = q_width + 2 * kv_width;
    float* x = step.workspace;                 // [N, H]
    float* normed = x + (int64_t)N * H;        // [N, H]
    float* wide = normed + (int64_t)N * H;     // [N, max(qkv, intermediate)]
    float* attended = wide + N * max64(qkv_width, s.intermediate_size);  // [N, q_width]
    auto norm = [&](const float* weight, float* to) {
        crew.run(N, [&](int row) { active->rms_norm(x + (int64_t)row * H, weight, s.eps, H, to + (int64_t)row * H); });
    };
    auto capture = [&](int layer) {
        for (int j = 0; j < step.num_captured; j++)
            if (step.capture[j] == layer)
                crew.run(N, [&](int row) {
                    memcpy(step.captured + ((int64_t)row * step.num_captured + j) * H, x + (int64_t)row * H, 4 * H);
                });
    };
    crew.run(N, [&](int row) { memcpy(x + (int64_t)row * H, step.x + (int64_t)row * H, 4 * H); });
    for (int index = 0; index < s.num_layers; index++) {
        const Layer& layer = s.layers[index];
        capture(index);
        const float* input = normed;
        int64_t input_width = H;
        if (index == 0 && step.normed) input = step.normed, input_width = step.input_width;
        else if (layer.input_norm) norm(layer.input_norm, normed);
        else input = x;
        linear_phase(crew, threads, layer.qkv, STORE, input, input_width, wide, qkv_width, N);
        crew.run(N, [&](int row) {
            float* qkv = wide + row * qkv_width;
            for (int head = 0; head < s.num_heads + s.num_kv_heads; head++) {
                const float* weight = head < s.num_heads ? layer.q_norm : layer.k_norm;
                if (weight) active->rms_norm(qkv + head * D, weight, s.eps, D, qkv + head * D);
                active->rope(qkv + head * D, step.cos + (int64_t)row * D, step.sin + (int64_t)row * D, D);
            }
            active->to_cache(qkv + q_width, step.cache_format, step.caches[index], step.cache_rows[row] * step.cache_width, 2 * kv_width);
        });
        crew.run(call.num_blocks * s.num_kv_heads, [&](int piece) {
            const int block = piece / s.num_kv_heads, head = piece % s.num_kv_heads;
            active->attend(s, step, wide, qkv_width, step.caches[index], head, call.block_starts[block], call.block_starts[block + 1], attended, q_width);
        });
        linear_phase(crew, threads, layer.output, ADD, attended, q_width, x, H, N);
        norm(layer.post_norm, normed);
        linear_phase(crew, threads, layer.gate_up, SWIGLU, normed, H, wide, s.intermediate_size, N);
        linear_phase(crew, threads, layer.down, ADD, wide, s.intermediate_size, x, H, N);
    }
    capture(s.num_layers);
    crew.run(N, [&](int row) {
        if (s.final_norm) active->rms_norm(x + (int64_t)row * H, s.final_norm, s.eps, H, step.out + (int64_t)row * H);
        else memcpy(step.out + (int64_t)row * H, x + (int64_t)row * H, 4 * H);
    });
}

}  // namespace

#define API __attribute__((visibility("default")))

extern "C" {

API int32_t trt_spec_interface() { return INTERFACE; }

// What this processor can run: bit 0 AVX2 with FMA and F16C, bit 1 AVX-512.
API int32_t trt_spec_isa() {
    __builtin_cpu_init();
    unsigned a, b, c = 0, d;
    const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
    const bool avx2 = has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 | avx512 << 1;
}

// Takes the instruction set `isa` (1 AVX2, 2 AVX-512); returns the floats of its vectors.
API int32_t trt_spec_start(int32_t isa, void* parallel_fn) {
    gomp_parallel = (ParallelFn)parallel_fn;
    active = isa == 2 ? &kernels_avx512 : &kernels_avx2;
    return active->width;
}

// Bytes of the panels of a weight.
API int64_t trt_spec_panel_bytes(const Packed* w) {
    const int64_t per_panel = (int64_t)w->in_features * 2 * active->width;
    return w->num_panels * per_panel * (w->format == F32 ? 4 : 2);
}

// Fills a weight's panels from rows [rows, in_features] of its format.
API void trt_spec_pack(const Packed* w, const void* rows_, int64_t num_rows) {
    const int W = active->width, P = 2 * W, K = w->in_features;
    const int bytes = w->format == F32 ? 4 : 2;
    const uint8_t* rows = (const uint8_t*)rows_;
    uint8_t* to = (uint8_t*)w->panels;
    memset(to, 0, trt_spec_panel_bytes(w));
    for (int64_t panel = 0; panel < w->num_panels; panel++)
        for (int lane = 0; lane < P; lane++) {
            int64_t row = panel * P + lane;
            if (w->is_gated) {
                row = panel * W + lane % W;
                if (row >= num_rows / 2) continue;
                if (lane >= W) row += num_rows / 2;
            }
            if (row >= num_rows) continue;
            const uint8_t* from = rows + row * K * bytes;
            const int half = lane / W, j = lane % W;
            for (int64_t k = 0; k < K; k++) {
                if (w->format == BF16) {
                    ((uint16_t*)to)[(panel * K + k) * P + 2 * j + half] = ((const uint16_t*)from)[k];
                } else if (w->format == F16) {
                    ((uint16_t*)to)[(panel * K + k) * P + lane] = ((const uint16_t*)from)[k];
                } else {
                    ((float*)to)[(panel * K + k) * P + lane] = ((const float*)from)[k];
                }
            }
        }
}

API void trt_spec_linear(const Packed* w, const float* x, float* y, int32_t rows, int32_t threads) {
    LinearCall call{w, x, y, rows};
    parallel(threads, 1, [](void* raw, Crew& crew, int threads) {
        const LinearCall& c = *(LinearCall*)raw;
        linear_phase(crew, threads, *c.w, STORE, c.x, c.w->in_features, c.y, c.w->out_features, c.rows);
    }, &call);
}

API int64_t trt_spec_workspace_floats(const Stack* s, int64_t rows) {
    const int64_t q_width = (int64_t)s->num_heads * s->head_dim, qkv_width = q_width + 2 * (int64_t)s->num_kv_heads * s->head_dim;
    return rows * (2 * s->hidden_size + max64(qkv_width, s->intermediate_size) + q_width) + 64;
}

API void trt_spec_forward(const Stack* stack, const Step* step, int32_t threads) {
    const int group = stack->num_heads / stack->num_kv_heads;
    const int most = group >= 48 ? 1 : 48 / group;  // rows of a block: its queries stay in the first cache
    ForwardCall call{stack, step, 0, (int*)malloc(sizeof(int) * (step->num_rows + 1))};
    for (int row = 0, start = 0; row < step->num_rows; row++) {
        if (row == 0 || step->slot_starts[row] != step->slot_starts[row - 1] || row - start == most)
            call.block_starts[call.num_blocks++] = start = row;
    }
    call.block_starts[call.num_blocks] = step->num_rows;
    parallel(threads, 2 + stack->num_layers * 8 + step->num_captured, forward, &call);
    free(call.block_starts);
}
}
