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

constexpr std::size_t large_page = std::size_t{1} << 21;

std::size_t round_up(std::size_t n, std::size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

std::uint32_t* zeros(std::size_t n_words) {
    std::size_t bytes = round_up(n_words * sizeof(std::uint32_t), sizeof(Words));
    const bool large = bytes >= large_page;
    if (large) bytes = round_up(bytes, large_page);
    void* memory = std::aligned_alloc(large ? large_page : sizeof(Words), bytes);
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

// How far ahead weights are fetched, past the caches: none is read twice before all have been, and
// what else a decoder needs for a step, the word search above all, would otherwise have to be read
// from memory again each time.
constexpr std::size_t words_ahead = 4096 / sizeof(std::uint32_t);

CORTEXT_INLINE Words next_words(const std::uint32_t* from) {
    __builtin_prefetch(from + words_ahead, 0, 0);
    return load<Words>(from);
}

CORTEXT_INLINE Floats as_floats(const Words& words) { return load<Floats>(&words); }

// Columns that are read together.
constexpr std::size_t together = 4;

// A number of 8 bits in the highest 8 of a word, times 2^24.
CORTEXT_INLINE Floats high_byte(const Words& words) {
    const Words high = words & 0xFF000000U;
    return __builtin_convertvector(load<Integers>(&high), Floats);
}

// sums += the weights of four columns times x[0] to x[3]; returns where the next weights are.
template <Weights kept_as, std::size_t n>
CORTEXT_INLINE const std::uint32_t* add_columns(const std::uint32_t* words, const float* x,
                                                Floats (&first)[n], Floats (&second)[n]) {
    constexpr float unit = kept_as == Weights::int8 ? 0x1p-24F : 1.0F;
    const Floats x0 = all(x[0] * unit), x1 = all(x[1] * unit), x2 = all(x[2] * unit),
                 x3 = all(x[3] * unit);
    constexpr std::size_t row = n * lanes;
#pragma GCC unroll 4
    for (std::size_t v = 0; v < n; ++v) {
        const std::uint32_t* from = words + v * lanes;
        if (kept_as == Weights::float32) {
            first[v] += as_floats(next_words(from)) * x0;
            second[v] += as_floats(next_words(from + row)) * x1;
            first[v] += as_floats(next_words(from + 2 * row)) * x2;
            second[v] += as_floats(next_words(from + 3 * row)) * x3;
        } else if (kept_as == Weights::bfloat16) {
            const Words both = next_words(from), later = next_words(from + row);
            first[v] += as_floats(both << 16) * x0;
            second[v] += as_floats(both & 0xFFFF0000U) * x1;
            first[v] += as_floats(later << 16) * x2;
            second[v] += as_floats(later & 0xFFFF0000U) * x3;
        } else {
            const Words four = next_words(from);
            first[v] += high_byte(four << 24) * x0;
            second[v] += high_byte(four << 16) * x1;
            first[v] += high_byte(four << 8) * x2;
            second[v] += high_byte(four) * x3;
        }
    }
    return words + together / per_word(kept_as) * row;
}

template <Weights kept_as>
CORTEXT_INLINE void add_panels(const std::uint32_t* words, std::size_t n_panels,
                               std::size_t n_columns, const float* x, float* sum) {
    constexpr std::size_t n = 4;
    for (std::size_t panel = 0; panel < n_panels; ++panel, sum += n * lanes) {
        Floats first[n] = {}, second[n] = {};
        for (std::size_t column = 0; column < n_columns; column += together) {
            words = add_columns<kept_as, n>(words, x + column, first, second);
        }
        for (std::size_t v = 0; v < n; ++v) {
            store(sum + v * lanes, load<Floats>(sum + v * lanes) + (first[v] + second[v]));
        }
    }
}

CORTEXT_FOR_EACH_PROCESSOR
void add_float32(const std::uint32_t* words, std::size_t n_panels, std::size_t n_columns,
                 const float* x, float* sum) {
    add_panels<Weights::float32>(words, n_panels, n_columns, x, sum);
}

CORTEXT_FOR_EACH_PROCESSOR
void add_bfloat16(const std::uint32_t* words, std::size_t n_panels, std::size_t n_columns,
                  const float* x, float* sum) {
    add_panels<Weights::bfloat16>(words, n_panels, n_columns, x, sum);
}

CORTEXT_FOR_EACH_PROCESSOR
void add_int8(const std::uint32_t* words, std::size_t n_panels, std::size_t n_columns,
              const float* x, float* sum) {
    add_panels<Weights::int8>(words, n_panels, n_columns, x, sum);
}

CORTEXT_FOR_EACH_PROCESSOR
void scale(float* sum, const float* scales, std::size_t size) {
    for (std::size_t i = 0; i < size; i += lanes)
        store(sum + i, load<Floats>(sum + i) * load<Floats>(scales + i));
}

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
    static_assert(panel_rows == 4 * lanes && block_rows == lanes);
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
        if (kept_as_ == Weights::float32) add_float32(words, n_panels_, n_columns, filled_up, sum);
        if (kept_as_ == Weights::bfloat16)
            add_bfloat16(words, n_panels_, n_columns, filled_up, sum);
        if (kept_as_ == Weights::int8) add_int8(words, n_panels_, n_columns, filled_up, sum);
    }
}

void StepMatrix::finish(float* sum) const {
    if (kept_as_ == Weights::int8) scale(sum, scales_.data(), scales_.size());
}

}  // namespace cortext
