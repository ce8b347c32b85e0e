// The recurrence of a GRU layer in training: all steps of some trials forwards, and the gradient
// backwards.
//
// r, z = sigmoid(input + recurrent), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z
// h_before, where recurrent = w_hh h_before + b_hh. Numbers of the products are bfloat16, their
// sums, states and gates are float32.
//
// Trials lie one after the other: B trials, N rows (the steps of all trials), D units, G = 3 D
// gates in the order r, z, n. Every result depends on its own trial alone, in an order of its own:
// not on the other trials nor on the threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cortext {

using bfloat16 = std::uint16_t;  // its bits

// What forwards and backwards have in common.
struct RecurrentLayer {
    std::size_t n_units;         // a multiple of `unit_multiple`
    std::size_t n_trials;        // B
    const std::int64_t* starts;  // [B + 1]; trial b has the rows starts[b] to starts[b + 1] - 1
    const float* h0_BD;
    const float* w_hh_GD;
};

struct ForwardPass {
    const bfloat16* input_NG;  // with the bias of the input
    const float* b_hh_G;
    float* h_ND;            // states after each step
    bfloat16* h_before_ND;  // states before each step, as the products take them
    float* gates_N4D;       // r, z, n, recurrent_n
};

struct BackwardPass {
    const float* d_h_ND;  // d(loss) / d(h_ND)
    const float* h_ND;
    const float* gates_N4D;
    bfloat16* d_input_NG;
    bfloat16* d_recurrent_NG;
    float* d_h0_BD;
    float* d_b_hh_G;
};

constexpr std::size_t unit_multiple = 16;

// Whether this build and this processor can do it: it takes AVX512-BF16.
bool can_run_recurrence();

// Both need `can_run_recurrence`; trials are shared out over at most `n_threads` threads.
void run_forward(const RecurrentLayer& layer, const ForwardPass& pass, std::size_t n_threads);
void run_backward(const RecurrentLayer& layer, const BackwardPass& pass, std::size_t n_threads);

}  // namespace cortext
