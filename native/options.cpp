#include "options.hpp"

#include <algorithm>
#include <sstream>

#include "error.hpp"

namespace cortext {

namespace {

template <class Number>
struct Bounds {
    const char* name;
    Number Options::*option;
    Number low, high;
};

constexpr Bounds<double> kNumbers[] = {
    {"acoustic_scale", &Options::acoustic_scale, 1e-3, 1e3},
    {"lm_weight", &Options::lm_weight, 0, 1e3},
    {"word_score", &Options::word_score, -kLargest, kLargest},
    {"sil_cost", &Options::sil_cost, -kLargest, kLargest},
    {"unk_score", &Options::unk_score, -kLargest, kLargest},
    {"blank_skip", &Options::blank_skip, 0, 1e6},
    {"beam", &Options::beam, 0, 1e9},
    {"word_beam", &Options::word_beam, 0, 1},
    {"lattice_beam", &Options::lattice_beam, 0, 1e9},
};

constexpr Bounds<int> kCounts[] = {
    {"max_active", &Options::max_active, 1, 1'000'000'000},
    {"min_active", &Options::min_active, 1, 1'000'000'000},
    {"max_arcs", &Options::max_arcs, 1, 1'000'000'000},
    {"nbest", &Options::nbest, 1, 1'000'000'000},
    {"history_words", &Options::history_words, 0, 1000},
};

template <class Number>
void check_bounds(const Options& options, const Bounds<Number>& bounds) {
    const Number value = options.*bounds.option;
    if (value >= bounds.low && value <= bounds.high) return;
    std::ostringstream what;
    what << bounds.name << " is " << value << "; it must be at least " << bounds.low
         << " and at most " << bounds.high;
    throw Error(what.str());
}

}  // namespace

void check_options(const Options& options, std::size_t n_tokens) {
    for (const Bounds<double>& bounds : kNumbers) check_bounds(options, bounds);
    for (const Bounds<int>& bounds : kCounts) check_bounds(options, bounds);
    if (options.offsets.size() != n_tokens) throw Error("one offset a token is needed");
    if (!std::all_of(options.offsets.begin(), options.offsets.end(), is_sound)) {
        throw Error("an offset is not a number or beyond a million");
    }
}

}  // namespace cortext
