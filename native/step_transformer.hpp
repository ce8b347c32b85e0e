// One frame of a Transformer for one trial, its embedding and its stack of blocks: what a live
// decoder does every 80 ms.
//
// In each block x += attended(attention(qkv(norm(x)))), then x += narrow(gelu(widen(norm(x)))); a
// last norm follows. Attention compares a frame with itself and with the frames before it, whose
// keys and values the caller keeps in float32.
#pragma once

#include <cstddef>
#include <vector>

#include "step_gru.hpp"

namespace cortext {

// Mean 0 and variance 1, then times `weight` plus `bias`; both are filled up with zeros to whole
// vectors.
class StepNorm {
public:
    StepNorm(const float* weight, const float* bias, std::size_t size, float epsilon);

    std::size_t size() const { return size_; }
    std::size_t filled_up() const { return weight_.size(); }
    // x and y [filled_up()], zero after `size()`
    void apply(const float* x, float* y) const;

private:
    std::size_t size_;
    std::vector<float> weight_, bias_;
    float epsilon_;
};

// Norm, linear map, norm: from a patch to the units of a frame.
class StepEmbedding {
public:
    // Throws std::invalid_argument where sizes do not fit.
    StepEmbedding(StepNorm patch_norm, StepLinear map, StepNorm norm);

    std::size_t n_inputs() const { return patch_norm_.size(); }
    std::size_t n_units() const { return norm_.size(); }
    void apply(const float* x, float* y) const;  // x [n_inputs], y [n_units]
    void set_prefetch(Prefetch prefetch) { map_.set_prefetch(prefetch); }

private:
    StepNorm patch_norm_;
    StepLinear map_;
    StepNorm norm_;
};

// Keys and values of frames, [n_layers, n_rows, width] each. Rows `row - n_before` to `row - 1` are
// those of the frames that are seen; `row` is written.
struct KeptFrames {
    float *keys, *values;
    std::size_t n_rows, row, n_before;
};

class StepTransformer {
public:
    struct Block {
        StepNorm attention_norm;
        StepLinear qkv;                    // of three blocks
        std::vector<float> distance_bias;  // of 0, 1, 2 ... frames; all further ones have the last
        StepLinear attended;
        StepNorm feed_forward_norm;
        StepLinear widen, narrow;
    };

    // Throws std::invalid_argument where sizes do not fit.
    StepTransformer(std::vector<Block> blocks, StepNorm norm, std::size_t n_heads);
    StepTransformer(const StepTransformer&) = delete;
    StepTransformer& operator=(const StepTransformer&) = delete;

    std::size_t n_layers() const { return blocks_.size(); }
    std::size_t n_units() const { return norm_.size(); }
    std::size_t width() const { return blocks_.front().qkv.n_rows(); }  // of all heads

    // x and y [n_units]. It changes no more than the frame's own row and y, so that threads may
    // share the blocks.
    void step(const float* x, const KeptFrames& kept, float* y) const;
    void set_prefetch(Prefetch prefetch);

private:
    std::vector<Block> blocks_;
    StepNorm norm_;
    std::size_t n_heads_;
};

}  // namespace cortext
