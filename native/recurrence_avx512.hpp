// The inner part of the recurrence for one thread. Its source is compiled for AVX512-BF16: it uses
// nothing of the standard library that has code, which other sources might get to share.
#pragma once

#include "recurrence.hpp"

namespace cortext::avx512 {

constexpr std::size_t panel_width = 48;  // outputs of a product that are computed together

// The trials of a thread: `trials` [n_trials], the longest first.
struct Share {
    const std::size_t* trials;
    std::size_t n_trials;
};

// w_hh_GD as the products read it, from the first to the last number: [panels][inputs /
// 2][panel_width][2]. Forwards a panel has the three gates of 16 units; backwards 48 units (zeros
// beyond the last).
std::size_t forward_weight_size(std::size_t n_units);
std::size_t backward_weight_size(std::size_t n_units);
void pack_forward_weight(const RecurrentLayer& layer, bfloat16* packed);
void pack_backward_weight(const RecurrentLayer& layer, bfloat16* packed);

void forward(const RecurrentLayer& layer, const ForwardPass& pass, const bfloat16* packed,
             const Share& share);

// d_h [share.n_trials, panels * panel_width], zeros: memory for d(loss) / d(h) of the step at hand.
void backward(const RecurrentLayer& layer, const BackwardPass& pass, const bfloat16* packed,
              const Share& share, float* d_h);

// Sums of the columns of [n_rows, n_columns] (a multiple of 16), row after row.
void sum_rows(const bfloat16* rows, std::size_t n_rows, std::size_t n_columns, float* sums);

}  // namespace cortext::avx512
