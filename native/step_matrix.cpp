#include "step_matrix.hpp"

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

std::size_t round_up(std::size_t n, std::size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

std::uint32_t* zeros(std::size_t n_words) {
    std::size_t bytes = round_up(n_words * sizeof(std::uint32_t), sizeof(Words));
    const bool large = bytes >= large_page;
    if (large) bytes = round_up(bytes, large_page);
    void* room = std::aligned_alloc(large ? large_page : sizeof(Words), bytes);
    if (room == nullptr) throw std::bad_alloc();
#ifdef __linux__
    // With small ones, looking up addresses takes a third of the time of a product. It is a wish: no harm if refused.
    if (large) madvise(room, bytes, MADV_HUGEPAGE);
#endif
    std::memset(room, 0, bytes);
    return static_cast<std::uint32_t*>(room);
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

// How far ahead weights are fetched, past the caches: none is read twice before all have been, and what else a decoder
// needs for a step, the word search above all, would otherwise have to be read from memory again each time.
constexpr std::size_t words_ahead = 4096 / sizeof(std::uint32_t);

CORTEXT_INLINE Words next_words(const std::uint32_t* from) {
    __builtin_prefetch(from + words_ahead, 0, 0);
    return load<Words>(from);
}

CORTEXT_INLINE Floats as_floats(const Words& words) { return load<Floats>(&words); }

// sums += the weights of two columns times x[0] and x[1]; returns where the next weights are.
template <bool halves, std::size_t n>
CORTEXT_INLINE const std::uint32_t* add_two_columns(const std::uint32_t* words, const float* x, Floats (&first)[n],
                                                    Floats (&second)[n]) {
    const Floats x0 = all(x[0]), x1 = all(x[1]);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < n; ++v) {
        if (halves) {
            const Words both = next_words(words + v * lanes);
            first[v] += as_floats(both << 16) * x0;
            second[v] += as_floats(both & 0xFFFF0000U) * x1;
        } else {
            first[v] += as_floats(next_words(words + v * lanes)) * x0;
            second[v] += as_floats(next_words(words + (n + v) * lanes)) * x1;
        }
    }
    return words + (halves ? 1 : 2) * n * lanes;
}

template <bool halves, std::size_t n>
CORTEXT_INLINE void multiply_panels(const std::uint32_t* words, std::size_t n_panels, std::size_t n_columns,
                                    const float* x, float* product) {
    for (std::size_t panel = 0; panel < n_panels; ++panel) {
        Floats first[n] = {}, second[n] = {};
        for (std::size_t column = 0; column < n_columns; column += 2) {
            words = add_two_columns<halves, n>(words, x + column, first, second);
        }
        for (std::size_t v = 0; v < n; ++v) store(product + (panel * n + v) * lanes, first[v] + second[v]);
    }
}

constexpr std::size_t vectors = 4;

CORTEXT_FOR_EACH_PROCESSOR
void multiply_floats(const std::uint32_t* words, std::size_t n_panels, std::size_t n_columns, const float* x,
                     float* product) {
    multiply_panels<false, vectors>(words, n_panels, n_columns, x, product);
}

CORTEXT_FOR_EACH_PROCESSOR
void multiply_halves(const std::uint32_t* words, std::size_t n_panels, std::size_t n_columns, const float* x,
                     float* product) {
    multiply_panels<true, vectors>(words, n_panels, n_columns, x, product);
}

}  // namespace

void StepMatrix::Free::operator()(std::uint32_t* words) const { std::free(words); }

StepMatrix::StepMatrix(const float* rows, std::size_t n_blocks, std::size_t n_rows, std::size_t n_columns,
                       bool as_bfloat16)
    : block_size_(round_up(n_rows, block_rows)),
      n_panels_(round_up(n_blocks * block_size_, panel_rows) / panel_rows),
      n_columns_(n_columns),
      columns_per_word_(as_bfloat16 ? 2 : 1),
      words_(zeros(size() * round_up(n_columns, 2) / columns_per_word_)) {
    static_assert(panel_rows == vectors * lanes && block_rows == lanes);
    for (std::size_t b = 0; b < n_blocks; ++b) {
        for (std::size_t row = 0; row < n_rows; ++row, rows += n_columns) {
            for (std::size_t column = 0; column < n_columns; ++column) {
                const float weight = rows[column];
                word(block(b) + row, column) |= as_bfloat16 ? to_bfloat16(weight) << (column % 2 * 16) : bits(weight);
            }
        }
    }
}

std::uint32_t& StepMatrix::word(std::size_t row, std::size_t column) {
    const std::size_t words_per_row = round_up(n_columns_, 2) / columns_per_word_;
    const std::size_t panel = row / panel_rows * words_per_row;
    return words_.get()[(panel + column / columns_per_word_) * panel_rows + row % panel_rows];
}

void StepMatrix::multiply(const float* x, float* product) const {
    std::vector<float> even;
    if (n_columns_ % 2 != 0) {
        even.assign(x, x + n_columns_);
        even.push_back(0.0F);
        x = even.data();
    }
    const auto& kernel = columns_per_word_ == 2 ? multiply_halves : multiply_floats;
    kernel(words_.get(), n_panels_, round_up(n_columns_, 2), x, product);
}

}  // namespace cortext
