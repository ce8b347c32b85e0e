// Settings of one search. Python's DecoderOptions (cortext/decoding/options.py) says what each of
// them means.
#pragma once

#include <cstddef>
#include <vector>

namespace cortext {

// The largest size of a number without narrower bounds: a word's bonus, the log of a weight, an
// added score.
constexpr double kLargest = 1e6;

// One line for each option: type, name, default, lowest and highest value. All else follows from
// these lines: the members of `Options`, the check of their bounds and the attributes in Python. A
// test compares them with the fields of DecoderOptions.
#define CORTEXT_OPTIONS(OPTION)                           \
    OPTION(double, acoustic_scale, 0.8, 1e-3, 1e3)        \
    OPTION(double, lm_weight, 1.0, 0, 1e3)                \
    OPTION(double, word_score, -1.0, -kLargest, kLargest) \
    OPTION(double, sil_cost, 10.0, -kLargest, kLargest)   \
    OPTION(double, unk_score, -10.0, -kLargest, kLargest) \
    OPTION(double, blank_skip, 1.0, 0, 1e6)               \
    OPTION(double, beam, 15.0, 0, 1e9)                    \
    OPTION(double, word_beam, 0.7, 0, 1)                  \
    OPTION(double, lattice_beam, 8.0, 0, 1e9)             \
    OPTION(int, max_active, 500, 1, 1'000'000'000)        \
    OPTION(int, min_active, 10, 1, 1'000'000'000)         \
    OPTION(int, max_arcs, 100'000, 1, 1'000'000'000)      \
    OPTION(int, nbest, 10, 1, 1'000'000'000)              \
    OPTION(int, history_words, 0, 0, 1000)                \
    OPTION(bool, logadd, true, false, true)               \
    OPTION(bool, sil_required, false, false, true)

struct Options {
#define CORTEXT_MEMBER(type, name, initial, low, high) type name = initial;
    CORTEXT_OPTIONS(CORTEXT_MEMBER)
#undef CORTEXT_MEMBER
    // Subtracted from the log-probability of each token (log of the blank penalty, weighted log of
    // the label prior).
    std::vector<double> offsets;
};

// Tells whether a number is one, and no larger than `kLargest`: NaN fails both comparisons.
inline bool is_sound(double number) { return number >= -kLargest && number <= kLargest; }

// Throws Error for options that a search cannot have. Python has checked them before; they are
// checked again because a wrong one would become a wrong address or an endless loop here.
void check_options(const Options& options, std::size_t n_tokens);

}  // namespace cortext
