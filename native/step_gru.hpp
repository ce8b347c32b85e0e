// One step of a stack of GRU layers for one trial, and a linear map of one vector: what a live decoder does every 80
// ms.
//
// r, z = sigmoid(input + recurrent), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z h_before, where input =
// w_ih x + b_ih and recurrent = w_hh h_before + b_hh; the gates lie in the order r, z, n.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "step_matrix.hpp"

namespace cortext {

// A matrix and what is added to its products. [n_blocks * n_rows, n_columns] and [n_blocks * n_rows] or nullptr.
class StepLinear {
public:
    StepLinear(const float* weight, const float* bias, std::size_t n_blocks, std::size_t n_rows, std::size_t n_columns,
               Weights kept_as);

    const StepMatrix& matrix() const { return matrix_; }
    std::size_t n_rows() const { return n_rows_; }
    void apply(const float* x, float* y) const;  // y [matrix().size()]

private:
    std::size_t n_rows_;
    StepMatrix matrix_;
    std::vector<float> bias_;  // as a product lies
};

class StepGRU {
public:
    struct Layer {
        StepLinear input, recurrent;  // of three blocks each
    };

    explicit StepGRU(std::vector<Layer> layers) : layers_(std::move(layers)) {}
    StepGRU(const StepGRU&) = delete;
    StepGRU& operator=(const StepGRU&) = delete;

    std::size_t n_inputs() const { return layers_.front().input.matrix().n_columns(); }
    std::size_t n_units() const { return layers_.front().recurrent.matrix().n_columns(); }
    std::size_t n_layers() const { return layers_.size(); }

    // x [n_inputs], state and next_state [n_layers, n_units]; the last layer's row of next_state is the output.
    void step(const float* x, const float* state, float* next_state) const;

private:
    std::vector<Layer> layers_;
};

}  // namespace cortext
