#include "step_gru.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "lanes.hpp"

namespace cortext {

namespace {

template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> sigmoid(const Floats<lanes>& x) {
    return 1.0F / (1.0F + exponential<lanes>(-x));
}

template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> hyperbolic_tangent(const Floats<lanes>& x) {
    return 1.0F - 2.0F * sigmoid<lanes>(x * -2.0F);
}

template <std::size_t lanes>
CORTEXT_INLINE void add_of(float* sum, const float* x, std::size_t size) {
    for (std::size_t i = 0; i < size; i += lanes)
        store(sum + i, load<Floats<lanes>>(sum + i) + load<Floats<lanes>>(x + i));
}

CORTEXT_FOR_EACH_PROCESSOR(add, (float* sum, const float* x, std::size_t size), (sum, x, size))

// h [block]: from the state before to the state after; a block is a gate.
template <std::size_t lanes>
CORTEXT_INLINE void update_of(const float* input, const float* recurrent, std::size_t block,
                              float* h) {
    for (std::size_t unit = 0; unit < block; unit += lanes) {
        const auto in = [&](std::size_t gate) __attribute__((always_inline)) {
            return load<Floats<lanes>>(input + gate * block + unit);
        };
        const auto rec = [&](std::size_t gate) __attribute__((always_inline)) {
            return load<Floats<lanes>>(recurrent + gate * block + unit);
        };
        const Floats<lanes> r = sigmoid<lanes>(in(0) + rec(0)), z = sigmoid<lanes>(in(1) + rec(1));
        const Floats<lanes> n = hyperbolic_tangent<lanes>(in(2) + r * rec(2));
        store(h + unit, n + z * (load<Floats<lanes>>(h + unit) - n));
    }
}

CORTEXT_FOR_EACH_PROCESSOR(update,
                           (const float* input, const float* recurrent, std::size_t block,
                            float* h),
                           (input, recurrent, block, h))

}  // namespace

StepLinear::StepLinear(const float* weight, const float* bias, std::size_t n_blocks,
                       std::size_t n_rows, std::size_t n_columns, Weights kept_as)
    : n_rows_(n_rows),
      matrix_(weight, n_blocks, n_rows, n_columns, kept_as),
      bias_(matrix_.size()) {
    if (bias == nullptr) return;
    for (std::size_t b = 0; b < n_blocks; ++b)
        std::copy_n(bias + b * n_rows, n_rows, &bias_[matrix_.block(b)]);
}

void StepLinear::apply(const float* x, float* y) const {
    std::vector<float> sum(matrix_.size());
    matrix_.add(x, 0, matrix_.n_columns(), sum.data());
    finish(sum.data(), y);
}

void StepLinear::finish(const float* sum, float* y) const {
    std::copy_n(sum, bias_.size(), y);
    matrix_.finish(y);
    add(y, bias_.data(), bias_.size());
}

void PartialProduct::extend(const float* x, std::size_t n_known) {
    const std::size_t until = map_.matrix().n_summable(n_known);
    if (n_summed_ > until || std::memcmp(x_.data(), x, n_summed_ * sizeof(float)) != 0) {
        std::fill(sum_.begin(), sum_.end(), 0.0F);
        n_summed_ = 0;
    }
    map_.matrix().add(x, n_summed_, until, sum_.data());
    std::copy(x + n_summed_, x + until, x_.data() + n_summed_);
    n_summed_ = until;
}

StepGRU::StepGRU(std::vector<Layer> layers)
    : layers_(std::move(layers)), input_(layers_.front().input) {
    for (const Layer& layer : layers_) recurrent_.emplace_back(layer.recurrent);
}

void StepGRU::set_prefetch(Prefetch prefetch) {
    const std::lock_guard<std::mutex> alone(mutex_);
    for (Layer& layer : layers_) {
        layer.input.set_prefetch(prefetch);
        layer.recurrent.set_prefetch(prefetch);
    }
}

void StepGRU::step(const float* x, const float* state, float* next_state) {
    const std::lock_guard<std::mutex> alone(mutex_);
    const std::size_t D = n_units(), block = layers_.front().recurrent.matrix().block(1);
    const std::size_t n_gates = layers_.front().recurrent.matrix().size();
    for (std::size_t l = 0; l < n_layers(); ++l) recurrent_[l].extend(state + l * D, D);
    const float* const unknown =
        std::find_if(x, x + n_inputs(), [](float number) { return std::isnan(number); });
    input_.extend(x, static_cast<std::size_t>(unknown - x));
    if (unknown != x + n_inputs()) {
        std::fill_n(next_state, n_layers() * D, std::numeric_limits<float>::quiet_NaN());
        return;
    }
    std::vector<float> input(n_gates), recurrent(n_gates), h(block);
    input_.finish(input.data());
    for (std::size_t l = 0; l < n_layers(); ++l, state += D, next_state += D) {
        if (l > 0) layers_[l].input.apply(next_state - D, input.data());
        recurrent_[l].finish(recurrent.data());
        std::copy_n(state, D, h.data());
        update(input.data(), recurrent.data(), block, h.data());
        std::copy_n(h.data(), D, next_state);
    }
}

}  // namespace cortext
