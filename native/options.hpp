// Settings of one search, as Python's DecoderOptions gives them.
#pragma once

#include <cstddef>
#include <vector>

namespace cortext {

struct Options {
    double acoustic_scale = 1.0;
    double lm_weight = 1.0;
    double word_score = 0.0;
    double sil_cost = 0.0;
    double unk_score = -10.0;
    double blank_skip = 1.0;
    double beam = 18.0;
    double word_beam = 0.7;
    double lattice_beam = 8.0;
    int max_active = 500;
    int min_active = 10;
    int max_arcs = 100000;
    int nbest = 10;
    int history_words = 0;
    bool logadd = true;
    bool sil_required = false;
    // Subtracted from the log-probability of each token (log of the blank penalty, weighted log of
    // the label prior).
    std::vector<double> offsets;
};

// The largest size of a number without narrower bounds: a word's bonus, the log of a weight, an
// added score.
constexpr double kLargest = 1e6;

// Whether a number is one, and no larger than that.
inline bool is_sound(double number) { return number >= -kLargest && number <= kLargest; }

// Throws Error for options that a search cannot have. The bounds are those of
// cortext/decoding/options.py.
void check_options(const Options& options, std::size_t n_tokens);

}  // namespace cortext
