#include "recurrence_avx512.hpp"

#include <immintrin.h>

#include <initializer_list>

namespace cortext::avx512 {

namespace {

constexpr std::size_t lanes = 16;  // floats in a vector
constexpr std::size_t blocks = 3;  // vectors in a row of a panel
constexpr std::size_t most_rows =
    8;  // trials multiplied together: with three blocks each they fill the registers

std::size_t n_panels(std::size_t n_outputs) { return (n_outputs + panel_width - 1) / panel_width; }

__m256i to_bfloat16(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

void store(bfloat16* to, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), to_bfloat16(x));
}

__m512 load_bfloat16(const bfloat16* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// The pairs (first[i], second[i]), as a product takes them.
__m512i pairs(__m512 first, __m512 second) {
    const __m512i low = _mm512_cvtepu16_epi32(to_bfloat16(first)),
                  high = _mm512_cvtepu16_epi32(to_bfloat16(second));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// e^x to a few units in the last place, for |x| <= 80: 2^n times the Taylor series of e^r for |r|
// <= log(2) / 2.
__m512 exponential(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(80.0F),
                      _mm512_max_ps(_mm512_set1_ps(-80.0F), x));  // in this order NaN stays NaN
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                          _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F),
                                x);  // log(2), its first bits and the rest
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
    __m512 sum = _mm512_set1_ps(1.0F / 5040);
    for (float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
        sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(coefficient));
    }
    return _mm512_scalef_ps(sum, n);
}

__m512 one() { return _mm512_set1_ps(1.0F); }

__m512 sigmoid(__m512 x) {
    return _mm512_div_ps(one(),
                         _mm512_add_ps(one(), exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

__m512 tanh(__m512 x) {
    return _mm512_fnmadd_ps(_mm512_set1_ps(2.0F), sigmoid(_mm512_mul_ps(x, _mm512_set1_ps(-2.0F))),
                            one());
}

// The first `n_steps` that holds for `step`: how many of the share's trials are at least step + 1
// long.
std::size_t n_active(const RecurrentLayer& layer, const Share& share, std::int64_t step) {
    std::size_t n = 0;
    while (n < share.n_trials &&
           layer.starts[share.trials[n] + 1] - layer.starts[share.trials[n]] > step)
        ++n;
    return n;
}

// sums[m] += x[m] times a panel, for rows of 2 n_pairs numbers.
template <std::size_t M>
void multiply(const bfloat16* const* x, const bfloat16* panel, std::size_t n_pairs,
              __m512 (&sums)[M][blocks]) {
    for (std::size_t k = 0; k < n_pairs; ++k) {
        __m512bh weights[blocks];
        for (std::size_t block = 0; block < blocks; ++block) {
            weights[block] = reinterpret_cast<__m512bh>(
                _mm512_loadu_si512(panel + (k * blocks + block) * 2 * lanes));
        }
        for (std::size_t m = 0; m < M; ++m) {
            int pair;
            __builtin_memcpy(&pair, x[m] + 2 * k, sizeof pair);
            const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
            for (std::size_t block = 0; block < blocks; ++block) {
                sums[m][block] = _mm512_dpbf16_ps(sums[m][block], weights[block], both);
            }
        }
    }
}

// One step forwards of M trials, for the units `unit` to `unit` + 15.
template <std::size_t M>
void forward_units(const RecurrentLayer& layer, const ForwardPass& pass, const bfloat16* panel,
                   std::size_t unit, const std::size_t* trials, std::int64_t step) {
    const std::size_t D = layer.n_units;
    const bfloat16* before[M];
    std::size_t rows[M];
    __m512 sums[M][blocks];
    for (std::size_t m = 0; m < M; ++m) {
        rows[m] = static_cast<std::size_t>(layer.starts[trials[m]] + step);
        before[m] = pass.h_before_ND + rows[m] * D;
        for (std::size_t g = 0; g < blocks; ++g)
            sums[m][g] = _mm512_loadu_ps(pass.b_hh_G + g * D + unit);
    }
    multiply<M>(before, panel, D / 2, sums);
    for (std::size_t m = 0; m < M; ++m) {
        const std::size_t row = rows[m];
        const bfloat16* input = pass.input_NG + row * 3 * D + unit;
        const __m512 h = _mm512_loadu_ps(
            (step ? pass.h_ND + (row - 1) * D : layer.h0_BD + trials[m] * D) + unit);
        const __m512 r = sigmoid(_mm512_add_ps(load_bfloat16(input), sums[m][0]));
        const __m512 z = sigmoid(_mm512_add_ps(load_bfloat16(input + D), sums[m][1]));
        const __m512 n = tanh(_mm512_fmadd_ps(r, sums[m][2], load_bfloat16(input + 2 * D)));
        const __m512 after = _mm512_fmadd_ps(z, _mm512_sub_ps(h, n), n);
        float* gates = pass.gates_N4D + row * 4 * D + unit;
        _mm512_storeu_ps(gates, r);
        _mm512_storeu_ps(gates + D, z);
        _mm512_storeu_ps(gates + 2 * D, n);
        _mm512_storeu_ps(gates + 3 * D, sums[m][2]);
        _mm512_storeu_ps(pass.h_ND + row * D + unit, after);
        if (layer.starts[trials[m]] + step + 1 < layer.starts[trials[m] + 1]) {
            store(pass.h_before_ND + (row + 1) * D + unit, after);
        }
    }
}

// Gradients of the gates of a trial at a row, from d(loss) / d(h) but for what comes from outside;
// leaves in d_h what goes straight to the state before.
void backward_gates(const RecurrentLayer& layer, const BackwardPass& pass, std::size_t row,
                    const float* h_before, float* d_h) {
    const std::size_t D = layer.n_units;
    const float* gates = pass.gates_N4D + row * 4 * D;
    bfloat16 *d_input = pass.d_input_NG + row * 3 * D,
             *d_recurrent = pass.d_recurrent_NG + row * 3 * D;
    for (std::size_t unit = 0; unit < D; unit += lanes) {
        const __m512 r = _mm512_loadu_ps(gates + unit), z = _mm512_loadu_ps(gates + D + unit);
        const __m512 n = _mm512_loadu_ps(gates + 2 * D + unit),
                     recurrent_n = _mm512_loadu_ps(gates + 3 * D + unit);
        const __m512 h = _mm512_loadu_ps(h_before + unit);
        const __m512 d = _mm512_add_ps(_mm512_loadu_ps(d_h + unit),
                                       _mm512_loadu_ps(pass.d_h_ND + row * D + unit));
        const __m512 d_kept = _mm512_mul_ps(d, z), d_new = _mm512_sub_ps(d, d_kept);
        const __m512 d_z =
            _mm512_mul_ps(_mm512_mul_ps(d_kept, _mm512_sub_ps(h, n)), _mm512_sub_ps(one(), z));
        const __m512 d_n = _mm512_mul_ps(d_new, _mm512_fnmadd_ps(n, n, one()));
        const __m512 d_recurrent_n = _mm512_mul_ps(d_n, r);
        const __m512 d_r =
            _mm512_mul_ps(_mm512_mul_ps(d_recurrent_n, recurrent_n), _mm512_sub_ps(one(), r));
        _mm512_storeu_ps(d_h + unit, d_kept);
        for (bfloat16* gradient : {d_input, d_recurrent}) {
            store(gradient + unit, d_r);
            store(gradient + D + unit, d_z);
        }
        store(d_input + 2 * D + unit, d_n);
        store(d_recurrent + 2 * D + unit, d_recurrent_n);
    }
}

// Adds to d_h of M trials what the recurrent weights hand back, for the units of a panel.
template <std::size_t M>
void backward_units(const bfloat16* const* d_recurrent, const bfloat16* panel, std::size_t n_gates,
                    float* const* d_h) {
    __m512 sums[M][blocks];
    for (std::size_t m = 0; m < M; ++m) {
        for (std::size_t block = 0; block < blocks; ++block)
            sums[m][block] = _mm512_loadu_ps(d_h[m] + block * lanes);
    }
    multiply<M>(d_recurrent, panel, n_gates / 2, sums);
    for (std::size_t m = 0; m < M; ++m) {
        for (std::size_t block = 0; block < blocks; ++block)
            _mm512_storeu_ps(d_h[m] + block * lanes, sums[m][block]);
    }
}

// Functions for 1 to most_rows rows.
using ForwardUnits = decltype(&forward_units<1>);
constexpr ForwardUnits forward_of[] = {forward_units<1>, forward_units<2>, forward_units<3>,
                                       forward_units<4>, forward_units<5>, forward_units<6>,
                                       forward_units<7>, forward_units<8>};
using BackwardUnits = decltype(&backward_units<1>);
constexpr BackwardUnits backward_of[] = {backward_units<1>, backward_units<2>, backward_units<3>,
                                         backward_units<4>, backward_units<5>, backward_units<6>,
                                         backward_units<7>, backward_units<8>};

}  // namespace

std::size_t forward_weight_size(std::size_t n_units) { return 3 * n_units * n_units; }

std::size_t backward_weight_size(std::size_t n_units) {
    return n_panels(n_units) * panel_width * 3 * n_units;
}

void pack_forward_weight(const RecurrentLayer& layer, bfloat16* packed) {
    const std::size_t D = layer.n_units;
    const __m512i rows =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(static_cast<int>(D)));
    for (std::size_t unit = 0; unit < D; unit += lanes) {
        for (std::size_t k = 0; k < D; k += 2) {
            for (std::size_t g = 0; g < blocks; ++g, packed += 2 * lanes) {
                const float* from = layer.w_hh_GD + (g * D + unit) * D + k;
                const __m512 first = _mm512_i32gather_ps(rows, from, 4),
                             second = _mm512_i32gather_ps(rows, from + 1, 4);
                _mm512_storeu_si512(packed, pairs(first, second));
            }
        }
    }
}

void pack_backward_weight(const RecurrentLayer& layer, bfloat16* packed) {
    const std::size_t D = layer.n_units;
    for (std::size_t panel = 0; panel < n_panels(D); ++panel) {
        for (std::size_t g = 0; g < 3 * D; g += 2) {
            for (std::size_t block = 0; block < blocks; ++block, packed += 2 * lanes) {
                const std::size_t unit = panel * panel_width + block * lanes;
                const __mmask16 inside = unit < D ? 0xFFFF : 0;
                const float* from = layer.w_hh_GD + g * D + (inside ? unit : 0);
                _mm512_storeu_si512(packed, pairs(_mm512_maskz_loadu_ps(inside, from),
                                                  _mm512_maskz_loadu_ps(inside, from + D)));
            }
        }
    }
}

void forward(const RecurrentLayer& layer, const ForwardPass& pass, const bfloat16* packed,
             const Share& share) {
    const std::size_t D = layer.n_units;
    for (std::size_t i = 0; i < n_active(layer, share, 0); ++i) {
        const std::size_t trial = share.trials[i],
                          row = static_cast<std::size_t>(layer.starts[trial]);
        for (std::size_t unit = 0; unit < D; unit += lanes) {
            store(pass.h_before_ND + row * D + unit,
                  _mm512_loadu_ps(layer.h0_BD + trial * D + unit));
        }
    }
    std::size_t active;
    for (std::int64_t step = 0; (active = n_active(layer, share, step)) > 0; ++step) {
        for (std::size_t unit = 0; unit < D; unit += lanes) {
            const bfloat16* panel = packed + unit * 3 * D;
            for (std::size_t i = 0; i < active; i += most_rows) {
                const std::size_t n = active - i < most_rows ? active - i : most_rows;
                forward_of[n - 1](layer, pass, panel, unit, share.trials + i, step);
            }
        }
    }
}

void backward(const RecurrentLayer& layer, const BackwardPass& pass, const bfloat16* packed,
              const Share& share, float* d_h) {
    if (share.n_trials == 0) return;
    const std::size_t D = layer.n_units, G = 3 * D, width = n_panels(D) * panel_width;
    const std::int64_t n_steps = layer.starts[share.trials[0] + 1] - layer.starts[share.trials[0]];
    for (std::int64_t step = n_steps - 1; step >= 0; --step) {
        const std::size_t active = n_active(layer, share, step);
        for (std::size_t i = 0; i < active; ++i) {
            const std::size_t trial = share.trials[i],
                              row = static_cast<std::size_t>(layer.starts[trial] + step);
            const float* h_before = step ? pass.h_ND + (row - 1) * D : layer.h0_BD + trial * D;
            backward_gates(layer, pass, row, h_before, d_h + i * width);
        }
        for (std::size_t panel = 0; panel < n_panels(D); ++panel) {
            for (std::size_t i = 0; i < active; i += most_rows) {
                const std::size_t n = active - i < most_rows ? active - i : most_rows;
                const bfloat16* d_recurrent[most_rows];
                float* d_before[most_rows];
                for (std::size_t m = 0; m < n; ++m) {
                    const std::int64_t row = layer.starts[share.trials[i + m]] + step;
                    d_recurrent[m] = pass.d_recurrent_NG + static_cast<std::size_t>(row) * G;
                    d_before[m] = d_h + (i + m) * width + panel * panel_width;
                }
                backward_of[n - 1](d_recurrent, packed + panel * panel_width * G, G, d_before);
            }
        }
    }
    for (std::size_t i = 0; i < share.n_trials; ++i) {
        for (std::size_t unit = 0; unit < D; unit += lanes) {
            _mm512_storeu_ps(pass.d_h0_BD + share.trials[i] * D + unit,
                             _mm512_loadu_ps(d_h + i * width + unit));
        }
    }
}

void sum_rows(const bfloat16* rows, std::size_t n_rows, std::size_t n_columns, float* sums) {
    for (std::size_t column = 0; column < n_columns; column += lanes) {
        _mm512_storeu_ps(sums + column, _mm512_setzero_ps());
    }
    for (std::size_t row = 0; row < n_rows; ++row, rows += n_columns) {
        for (std::size_t column = 0; column < n_columns; column += lanes) {
            const __m512 sum =
                _mm512_add_ps(_mm512_loadu_ps(sums + column), load_bfloat16(rows + column));
            _mm512_storeu_ps(sums + column, sum);
        }
    }
}

}  // namespace cortext::avx512
