// What the instruction sets share: packed weights, one decoder layer, one step. Plain C types only: `compiled.py`
// mirrors these structs with ctypes.
#pragma once
#include <stdint.h>

constexpr int32_t INTERFACE = 1;  // raised with every change of a struct or a function; library.py has the same number

enum Format { BF16 = 0, F16 = 1, F32 = 2 };
enum Epilogue { STORE = 0, ADD = 1, SWIGLU = 2 };  // y = a; y += a; y = silu(a[: half]) * a[half :]

// A weight [out_features, in_features] in panels of 2 W outputs, W floats to a vector. A panel is read once from front
// to back. SWIGLU panels hold W rows of the gate, then the W rows of the up projection that they multiply.
struct Packed {
    int32_t format, in_features, out_features, num_panels;
    int32_t is_gated, unused;
    const void* panels;  // 64-byte aligned
    const float* bias;   // [panels, 2 W] in panel order, or null
};

struct Layer {
    Packed qkv, output, gate_up, down;
    const float *input_norm, *post_norm, *q_norm, *k_norm;  // [width] or null
};

struct Stack {
    int32_t hidden_size, num_heads, num_kv_heads, head_dim, num_layers, intermediate_size;
    float eps, scale;
    const Layer* layers;
    const float* final_norm;  // [H], null where the last residual stream is the result
};

struct Step {
    int32_t num_rows, num_captured, input_width, cache_width, cache_format, unused;
    const float* x;              // [N, H] residual stream
    const float* normed;         // [N, input_width] the first layer's normed input, or null: it norms x itself
    void* const* caches;         // [layers] base of each layer's rows [slots · slot_len, cache_width]
    const int64_t* cache_rows;   // [N] where each row's keys and values go
    const int64_t* slot_starts;  // [N] cache row of token 0 of the row's sequence
    const int32_t* prefixes;     // [N] a row sees tokens [0, prefix) of its sequence ...
    const int32_t* extra_starts; // [N + 1] ... and those at extras[extra_starts[i] : extra_starts[i + 1]]
    const int32_t* extras;
    const float *cos, *sin;      // [N, head_dim]
    const int32_t* capture;      // [num_captured] layer whose input is copied to captured; ascending
    float* captured;             // [N, num_captured · H]
    float* out;                  // [N, H]
    float* workspace;            // workspace_floats(...)
};

// Work of one thread on one piece; an instruction set fills this table.
struct Kernels {
    int32_t width;
    void (*linear)(const Packed&, int epilogue, const float* x, int64_t xs, float* y, int64_t ys, int rows, int first_panel, int last_panel);
    void (*rms_norm)(const float* x, const float* weight, float eps, int size, float* y);
    void (*rope)(float* x, const float* cos, const float* sin, int dim);
    void (*to_cache)(const float* x, int format, void* rows, int64_t offset, int count);
    void (*attend)(const Stack&, const Step&, const float* q, int64_t qs, const void* cache, int kv_head, int first_row, int last_row, float* out, int64_t outs);
};
extern "C" const Kernels kernels_avx2, kernels_avx512;
