// One step of a stack of GRU layers for one trial, and a linear map of one vector: what a live
// decoder does every 80 ms.
//
// r, z = sigmoid(input + recurrent), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z
// h_before, where input = w_ih x + b_ih and recurrent = w_hh h_before + b_hh; the gates lie in the
// order r, z, n.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "step_matrix.hpp"

namespace cortext {

// A matrix and what is added to its products. [n_blocks * n_rows, n_columns] and [n_blocks *
// n_rows] or nullptr.
class StepLinear {
public:
    StepLinear(const float* weight, const float* bias, std::size_t n_blocks, std::size_t n_rows,
               std::size_t n_columns, Weights kept_as);

    const StepMatrix& matrix() const { return matrix_; }
    std::size_t n_rows() const { return n_rows_; }
    void apply(const float* x, float* y) const;     // y [matrix().size()]
    void finish(const float* sum, float* y) const;  // from the sum over all columns
    void set_prefetch(Prefetch prefetch) { matrix_.set_prefetch(prefetch); }

private:
    std::size_t n_rows_;
    StepMatrix matrix_;
    std::vector<float> bias_;  // as a product lies
};

// A product of which the last numbers of the vector may not be known yet. What was added up for the
// same first ones, bit for bit, is not added up again, and of others nothing is left: no sum can be
// out of date.
class PartialProduct {
public:
    explicit PartialProduct(const StepLinear& map)
        : map_(map), x_(map.matrix().n_columns()), sum_(map.matrix().size()) {}

    // x [n_columns], of which the first `n_known` numbers are read
    void extend(const float* x, std::size_t n_known);
    // y [matrix().size()], where all numbers were known
    void finish(float* y) const { map_.finish(sum_.data(), y); }

private:
    const StepLinear& map_;
    std::vector<float> x_, sum_;
    std::size_t n_summed_ = 0;
};

class StepGRU {
public:
    struct Layer {
        StepLinear input, recurrent;  // of three blocks each
    };

    explicit StepGRU(std::vector<Layer> layers);
    StepGRU(const StepGRU&) = delete;
    StepGRU& operator=(const StepGRU&) = delete;

    std::size_t n_inputs() const { return layers_.front().input.matrix().n_columns(); }
    std::size_t n_units() const { return layers_.front().recurrent.matrix().n_columns(); }
    std::size_t n_layers() const { return layers_.size(); }

    // x [n_inputs], state and next_state [n_layers, n_units]; the last layer's row of next_state is
    // the output. What is not a number makes all of it none, as in any product. That is of use
    // where the last numbers of x are not known yet: what depends on the state and on the first
    // ones alone is computed, and the step with all of them, from the same state, goes on from
    // there. Threads wait for each other.
    void step(const float* x, const float* state, float* next_state);
    void set_prefetch(Prefetch prefetch);

private:
    std::vector<Layer> layers_;
    std::mutex mutex_;                       // of the layers and the partial products
    PartialProduct input_;                   // of the first layer
    std::vector<PartialProduct> recurrent_;  // of each
};

}  // namespace cortext
