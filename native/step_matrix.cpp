#include "step_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <vector>

#include "lanes.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace cortext {

namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t large_page = std::size_t{1} << 21;

std::size_t round_up(std::size_t n, std::size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

std::uint32_t* zeros(std::size_t n_words) {
    std::size_t bytes = round_up(n_words * sizeof(std::uint32_t), cache_line);
    const bool large = bytes >= large_page;
    if (large) bytes = round_up(bytes, large_page);
    void* memory = std::aligned_alloc(large ? large_page : cache_line, bytes);
    if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
    // With small ones, looking up addresses takes a third of the time of a product. It is a wish:
    // no harm if refused.
    if (large) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    std::memset(memory, 0, bytes);
    return static_cast<std::uint32_t*>(memory);
}

std::uint32_t bits(float x) {
    std::uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    return word;
}

// The nearest bfloat16, of two the even one.
std::uint32_t to_bfloat16(float x) {
    const std::uint32_t word = bits(x);
    if (x != x) return (word >> 16) | 0x40;
    return (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
}

// The nearest of -127 ... 127 times most / 127. What is not a number is 0 here; `scales_` has it.
std::uint32_t to_int8(float x, float most) {
    const float share = x / most * 127;
    return share == share ? static_cast<std::uint8_t>(std::lrint(share)) : 0;
}

constexpr std::size_t per_word(Weights kept_as) {
    return kept_as == Weights::float32 ? 1 : kept_as == Weights::bfloat16 ? 2 : 4;
}

// How far ahead hints fetch weights.
constexpr std::size_t words_ahead = 4096 / sizeof(std::uint32_t);

// Hints are for the second-level cache. Past all caches, which should have spared those of the word
// search, made no difference to it, and are reported to take an Intel processor (Sapphire Rapids)
// twice the time.
template <Prefetch prefetch, std::size_t lanes>
CORTEXT_INLINE Words<lanes> next_words(const std::uint32_t* from, std::size_t vector) {
    constexpr std::size_t in_line = cache_line / sizeof(Words<lanes>);
    if (prefetch == Prefetch::by_hints && vector % in_line == 0)
        __builtin_prefetch(from + words_ahead, 0, 2);
    return load<Words<lanes>>(from);
}

template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> as_floats(const Words<lanes>& words) {
    return load<Floats<lanes>>(&words);
}

// Columns that are read together.
constexpr std::size_t together = 4;

// A number of 8 bits in the highest 8 of a word, times 2^24.
template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> high_byte(const Words<lanes>& words) {
    const Words<lanes> high = words & 0xFF000000U;
    return __builtin_convertvector(load<Integers<lanes>>(&high), Floats<lanes>);
}

// Sums that are kept in registers: a processor multiplies and adds twice as fast as one sum can
// follow the other in four vectors of 16, and has no registers for more than eight vectors of 8.
template <std::size_t lanes>
struct Sums {
    static constexpr std::size_t n_vectors = lanes == 16 ? 4 : 8, n_each = 8 / n_vectors;
    Floats<lanes> of[n_each][n_vectors];
};

// sums += the weights of four columns times x[0] to x[3].
template <Weights kept_as, Prefetch prefetch, std::size_t lanes>
CORTEXT_INLINE void add_columns(const std::uint32_t* words, const float* x, Sums<lanes>& sums) {
    constexpr float unit = kept_as == Weights::int8 ? 0x1p-24F : 1.0F;
    constexpr std::size_t row = StepMatrix::panel_rows, last = Sums<lanes>::n_each - 1;
    const Floats<lanes> x0 = all<lanes>(x[0] * unit), x1 = all<lanes>(x[1] * unit),
                        x2 = all<lanes>(x[2] * unit), x3 = all<lanes>(x[3] * unit);
#pragma GCC unroll 8
    for (std::size_t v = 0; v < Sums<lanes>::n_vectors; ++v) {
        const std::uint32_t* from = words + v * lanes;
        Floats<lanes>&first = sums.of[0][v], &second = sums.of[last][v];
        const auto next = [&](std::size_t number) __attribute__((always_inline)) {
            return next_words<prefetch, lanes>(from + number * row, v);
        };
        if (kept_as == Weights::float32) {
            first += as_floats<lanes>(next(0)) * x0;
            second += as_floats<lanes>(next(1)) * x1;
            first += as_floats<lanes>(next(2)) * x2;
            second += as_floats<lanes>(next(3)) * x3;
        } else if (kept_as == Weights::bfloat16) {
            const Words<lanes> both = next(0), later = next(1);
            first += as_floats<lanes>(both << 16) * x0;
            second += as_floats<lanes>(both & 0xFFFF0000U) * x1;
            first += as_floats<lanes>(later << 16) * x2;
            second += as_floats<lanes>(later & 0xFFFF0000U) * x3;
        } else {
            const Words<lanes> four = next(0);
            first += high_byte<lanes>(four << 24) * x0;
            second += high_byte<lanes>(four << 16) * x1;
            first += high_byte<lanes>(four << 8) * x2;
            second += high_byte<lanes>(four) * x3;
        }
    }
}

template <Weights kept_as, Prefetch prefetch, std::size_t lanes>
CORTEXT_INLINE void add_panels(const std::uint32_t* words, std::size_t n_panels,
                               std::size_t n_columns, const float* x, float* sum) {
    constexpr std::size_t n = Sums<lanes>::n_vectors;
    constexpr std::size_t row = StepMatrix::panel_rows;
    for (std::size_t panel = 0; panel < n_panels; ++panel) {
        // Vectors of 4 take half of a panel at a time; it lies in the first-level cache by then.
        for (std::size_t part = 0; part < row; part += n * lanes, sum += n * lanes) {
            Sums<lanes> sums = {};
            for (std::size_t column = 0; column < n_columns; column += together) {
                add_columns<kept_as, prefetch, lanes>(
                    words + column / per_word(kept_as) * row + part, x + column, sums);
            }
            for (std::size_t v = 0; v < n; ++v) {
                Floats<lanes> all_columns = sums.of[0][v];
                if (Sums<lanes>::n_each == 2) all_columns += sums.of[1][v];
                store(sum + v * lanes, load<Floats<lanes>>(sum + v * lanes) + all_columns);
            }
        }
        words += n_columns / per_word(kept_as) * row;
    }
}

template <Weights kept_as, std::size_t lanes>
CORTEXT_INLINE void add_panels(Prefetch prefetch, const std::uint32_t* words, std::size_t n_panels,
                               std::size_t n_columns, const float* x, float* sum) {
    if (prefetch == Prefetch::by_hints)
        add_panels<kept_as, Prefetch::by_hints, lanes>(words, n_panels, n_columns, x, sum);
    else
        add_panels<kept_as, Prefetch::by_processor, lanes>(words, n_panels, n_columns, x, sum);
}

template <std::size_t lanes>
CORTEXT_INLINE void add_block_of(Weights kept_as, Prefetch prefetch, const std::uint32_t* words,
                                 std::size_t n_panels, std::size_t n_columns, const float* x,
                                 float* sum) {
    if (kept_as == Weights::float32)
        add_panels<Weights::float32, lanes>(prefetch, words, n_panels, n_columns, x, sum);
    else if (kept_as == Weights::bfloat16)
        add_panels<Weights::bfloat16, lanes>(prefetch, words, n_panels, n_columns, x, sum);
    else
        add_panels<Weights::int8, lanes>(prefetch, words, n_panels, n_columns, x, sum);
}

CORTEXT_FOR_EACH_PROCESSOR(add_block,
                           (Weights kept_as, Prefetch prefetch, const std::uint32_t* words,
                            std::size_t n_panels, std::size_t n_columns, const float* x,
                            float* sum),
                           (kept_as, prefetch, words, n_panels, n_columns, x, sum))

template <std::size_t lanes>
CORTEXT_INLINE void scale_of(float* sum, const float* scales, std::size_t size) {
    for (std::size_t i = 0; i < size; i += lanes)
        store(sum + i, load<Floats<lanes>>(sum + i) * load<Floats<lanes>>(scales + i));
}

CORTEXT_FOR_EACH_PROCESSOR(scale, (float* sum, const float* scales, std::size_t size),
                           (sum, scales, size))

}  // namespace

void StepMatrix::Free::operator()(std::uint32_t* words) const { std::free(words); }

StepMatrix::StepMatrix(const float* rows, std::size_t n_blocks, std::size_t n_rows,
                       std::size_t n_columns, Weights kept_as)
    : kept_as_(kept_as),
      block_size_(round_up(n_rows, block_rows)),
      n_panels_(round_up(n_blocks * block_size_, panel_rows) / panel_rows),
      n_columns_(n_columns),
      columns_per_word_(per_word(kept_as)),
      words_(zeros(size() * round_up(n_columns, together) / columns_per_word_)),
      scales_(kept_as == Weights::int8 ? size() : 0) {
    static_assert(block_rows % 16 == 0, "a block is whole vectors on every processor");
    for (std::size_t b = 0; b < n_blocks; ++b) {
        for (std::size_t row = block(b); row < block(b) + n_rows; ++row, rows += n_columns) {
            float most = 0.0F;
            for (std::size_t column = 0; column < n_columns; ++column)
                most = std::max(most, std::abs(rows[column]));
            if (kept_as == Weights::int8) scales_[row] = most / 127;
            for (std::size_t column = 0; column < n_columns; ++column) {
                const float weight = rows[column];
                const std::uint32_t kept = kept_as == Weights::float32    ? bits(weight)
                                           : kept_as == Weights::bfloat16 ? to_bfloat16(weight)
                                                                          : to_int8(weight, most);
                put(row, column, kept);
            }
        }
    }
}

void StepMatrix::put(std::size_t row, std::size_t column, std::uint32_t bits) {
    const std::size_t first = column / block_columns * block_columns;
    const std::size_t width = round_up(std::min(block_columns, n_columns_ - first), together);
    const std::size_t panel =
        (first * size() + row / panel_rows * panel_rows * width) / columns_per_word_;
    const std::size_t word = (column - first) / columns_per_word_ * panel_rows + row % panel_rows;
    words_.get()[panel + word] |= bits << column % columns_per_word_ * (32 / columns_per_word_);
}

void StepMatrix::add(const float* x, std::size_t first, std::size_t until, float* sum) const {
    for (; first < until; first += block_columns) {
        const std::size_t width = std::min(block_columns, n_columns_ - first),
                          n_columns = round_up(width, together);
        float filled_up[block_columns] = {};
        std::copy_n(x + first, width, filled_up);
        const std::uint32_t* words = words_.get() + first * size() / columns_per_word_;
        add_block(kept_as_, prefetch_, words, n_panels_, n_columns, filled_up, sum);
    }
}

void StepMatrix::finish(float* sum) const {
    if (kept_as_ == Weights::int8) scale(sum, scales_.data(), scales_.size());
}

}  // namespace cortext
