// A matrix for products with one vector after another, as a live decoder needs them: they take as
// long as reading the matrix does. It is laid out in the order in which it is read, in large pages
// where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cortext {

// How weights are kept: rounded to bfloat16, or to -127 ... 127 times a number of their row.
// Products and sums are float32 in any case.
enum class Weights { float32, bfloat16, int8 };

// Who fetches weights from memory ahead of their use: the processor by its own foresight, or hints
// that ask for what lies 4 KB ahead. Which is faster differs from processor to processor; products
// have the same bits.
enum class Prefetch { by_processor, by_hints };

class StepMatrix {
public:
    // rows [n_blocks * n_rows, n_columns]
    StepMatrix(const float* rows, std::size_t n_blocks, std::size_t n_rows, std::size_t n_columns,
               Weights kept_as);

    // How many numbers a product has: every block is filled up to a multiple of `block_rows`, and
    // all together to one of `panel_rows`. What belongs to no row is zero.
    std::size_t size() const { return n_panels_ * panel_rows; }
    // Where the numbers of a block begin.
    std::size_t block(std::size_t number) const { return number * block_size_; }
    std::size_t n_columns() const { return n_columns_; }

    // How many of the first columns can be added to a sum where the first `n_known` numbers of x
    // are known.
    std::size_t n_summable(std::size_t n_known) const {
        return n_known < n_columns_ ? n_known / block_columns * block_columns : n_columns_;
    }
    // sum [size()] += columns `first` to `until`, which `n_summable` gave, times those of x
    // [n_columns]: the same bits whether at once or in parts.
    void add(const float* x, std::size_t first, std::size_t until, float* sum) const;
    // From the sum over all columns to the product.
    void finish(float* sum) const;

    // Not while another thread multiplies.
    void set_prefetch(Prefetch prefetch) { prefetch_ = prefetch; }

    // Rows that lie together: the kernels know of them.
    static constexpr std::size_t panel_rows = 64;

private:
    static constexpr std::size_t block_rows = 16, block_columns = 64;

    struct Free {
        void operator()(std::uint32_t* words) const;
    };

    void put(std::size_t row, std::size_t column, std::uint32_t bits);

    Weights kept_as_;
    Prefetch prefetch_ = Prefetch::by_processor;
    std::size_t block_size_, n_panels_, n_columns_, columns_per_word_;
    // [blocks of columns][panels][columns / columns_per_word][panel_rows]: a float32, two bfloat16
    // or four int8, the first in the low bits.
    std::unique_ptr<std::uint32_t, Free> words_;
    std::vector<float> scales_;  // [size()] of rows, with int8
};

}  // namespace cortext
