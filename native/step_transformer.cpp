#include "step_transformer.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <utility>

#include "lanes.hpp"

namespace cortext {

namespace {

// Numbers of the widest vector: what is filled up to it is whole vectors on every processor.
constexpr std::size_t widest = 16;
// Frames whose values are added up at once, so that sums are read and written less often.
constexpr std::size_t together = 4;

std::size_t fill_up(std::size_t n) { return (n + widest - 1) / widest * widest; }

template <std::size_t lanes>
CORTEXT_INLINE float total(const Floats<lanes>& x) {
    const Floats<lanes>* from = &x;
    if constexpr (lanes > 4) {
        constexpr std::size_t half = lanes / 2;
        const auto* numbers = reinterpret_cast<const char*>(from);
        return total<half>(load<Floats<half>>(numbers) +
                           load<Floats<half>>(numbers + half * sizeof(float)));
    } else {
        return (x[0] + x[2]) + (x[1] + x[3]);
    }
}

template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> larger(const Floats<lanes>& x, const Floats<lanes>& y) {
    return x > y ? x : y;
}

// All arrays are `filled_up` long, a multiple of `widest`; x is zero after `size`.
template <std::size_t lanes>
CORTEXT_INLINE void normalise_of(const float* x, std::size_t size, std::size_t filled_up,
                                 const float* weight, const float* bias, float epsilon, float* y) {
    const auto n = static_cast<float>(size);
    Floats<lanes> sum = {}, squares = {};
    for (std::size_t i = 0; i < filled_up; i += lanes) sum += load<Floats<lanes>>(x + i);
    const float mean = total<lanes>(sum) / n;
    for (std::size_t i = 0; i < filled_up; i += lanes)
        store(y + i, load<Floats<lanes>>(x + i) - mean);
    std::fill(y + size, y + filled_up, 0.0F);
    for (std::size_t i = 0; i < filled_up; i += lanes) {
        const auto from_mean = load<Floats<lanes>>(y + i);
        squares += from_mean * from_mean;
    }
    const float scale = 1.0F / std::sqrt(total<lanes>(squares) / n + epsilon);
    for (std::size_t i = 0; i < filled_up; i += lanes) {
        const Floats<lanes> normal = load<Floats<lanes>>(y + i) * scale;
        store(y + i, normal * load<Floats<lanes>>(weight + i) + load<Floats<lanes>>(bias + i));
    }
}

CORTEXT_FOR_EACH_PROCESSOR(normalise,
                           (const float* x, std::size_t size, std::size_t filled_up,
                            const float* weight, const float* bias, float epsilon, float* y),
                           (x, size, filled_up, weight, bias, epsilon, y))

// x times the probability that a normal variable is below x. The error function is Abramowitz and
// Stegun's 7.1.26, within 1.5e-7 of the exact one.
template <std::size_t lanes>
CORTEXT_INLINE void gelu_of(float* numbers, std::size_t size) {
    for (std::size_t i = 0; i < size; i += lanes) {
        const auto x = load<Floats<lanes>>(numbers + i);
        const Floats<lanes> magnitude = x < 0.0F ? -x : x, z = magnitude * 0.707106781F;
        const Floats<lanes> t = 1.0F / (1.0F + z * 0.3275911F);
        Floats<lanes> sum = all<lanes>(1.061405429F);
        for (float coefficient : {-1.453152027F, 1.421413741F, -0.284496736F, 0.254829592F})
            sum = sum * t + coefficient;
        // The probability beyond |x|: a product, so that nothing cancels where it is small.
        const Floats<lanes> beyond = 0.5F * sum * t * exponential<lanes>(-z * z);
        store(numbers + i, (x > 0.0F ? x : all<lanes>(0.0F)) - magnitude * beyond);
    }
}

CORTEXT_FOR_EACH_PROCESSOR(gelu, (float* numbers, std::size_t size), (numbers, size))

template <std::size_t lanes>
CORTEXT_INLINE void add_vector_of(float* sum, const float* x, std::size_t size) {
    for (std::size_t i = 0; i < size; i += lanes)
        store(sum + i, load<Floats<lanes>>(sum + i) + load<Floats<lanes>>(x + i));
}

CORTEXT_FOR_EACH_PROCESSOR(add_vector, (float* sum, const float* x, std::size_t size),
                           (sum, x, size))

template <std::size_t lanes>
CORTEXT_INLINE float dot(const float* x, const float* y, std::size_t size) {
    Floats<lanes> sum = {};
    std::size_t i = 0;
    for (; i + lanes <= size; i += lanes)
        sum += load<Floats<lanes>>(x + i) * load<Floats<lanes>>(y + i);
    float found = total<lanes>(sum);
    for (; i < size; ++i) found += x[i] * y[i];
    return found;
}

// scores [size], and room up to a multiple of `widest`, which becomes zeros.
template <std::size_t lanes>
CORTEXT_INLINE void softmax(float* scores, std::size_t size) {
    const std::size_t filled_up = fill_up(size);
    std::fill(scores + size, scores + filled_up, -std::numeric_limits<float>::infinity());
    auto most = load<Floats<lanes>>(scores);
    for (std::size_t i = lanes; i < filled_up; i += lanes)
        most = larger<lanes>(load<Floats<lanes>>(scores + i), most);
    float highest = most[0];
    for (std::size_t lane = 1; lane < lanes; ++lane) highest = std::max(highest, most[lane]);
    for (std::size_t i = 0; i < filled_up; i += lanes)
        store(scores + i, exponential<lanes>(load<Floats<lanes>>(scores + i) - highest));
    std::fill(scores + size, scores + filled_up, 0.0F);
    Floats<lanes> sum = {};
    for (std::size_t i = 0; i < filled_up; i += lanes) sum += load<Floats<lanes>>(scores + i);
    const float share = 1.0F / total<lanes>(sum);
    for (std::size_t i = 0; i < filled_up; i += lanes)
        store(scores + i, load<Floats<lanes>>(scores + i) * share);
}

// sum [head] += the same head of `n` frames, `width` apart, times their weights.
template <std::size_t n, std::size_t lanes>
CORTEXT_INLINE void add_frames(const float* values, std::size_t width, const float* weights,
                               std::size_t head_units, float* sum) {
    std::size_t i = 0;
    for (; i + lanes <= head_units; i += lanes) {
        auto found = load<Floats<lanes>>(sum + i);
        for (std::size_t frame = 0; frame < n; ++frame)
            found += load<Floats<lanes>>(values + frame * width + i) * weights[frame];
        store(sum + i, found);
    }
    for (; i < head_units; ++i)
        for (std::size_t frame = 0; frame < n; ++frame)
            sum[i] += values[frame * width + i] * weights[frame];
}

// What a frame looks at: the frames from the first to itself, `width` numbers apart.
struct Seen {
    const float *keys, *values;
    std::size_t n_frames, n_heads, head_units;
    const std::vector<float>& distance_bias;
};

// query and found [n_heads * head_units], scores [n_heads, fill_up(n_frames)]
template <std::size_t lanes>
CORTEXT_INLINE void attend_of(const Seen& seen, const float* query, float* scores, float* found) {
    const std::size_t E = seen.head_units, width = seen.n_heads * E, n = seen.n_frames;
    const std::size_t per_head = fill_up(n), furthest = seen.distance_bias.size() - 1;
    const float scale = 1.0F / std::sqrt(static_cast<float>(E));
    // Frames outside, heads inside: keys and values are read in the order in which they lie.
    for (std::size_t k = 0; k < n; ++k) {
        const float bias = seen.distance_bias[std::min(n - 1 - k, furthest)];
        const float* key = seen.keys + k * width;
        for (std::size_t h = 0; h < seen.n_heads; ++h)
            scores[h * per_head + k] = dot<lanes>(query + h * E, key + h * E, E) * scale + bias;
    }
    for (std::size_t h = 0; h < seen.n_heads; ++h) softmax<lanes>(scores + h * per_head, n);
    std::fill_n(found, width, 0.0F);
    for (std::size_t k = 0; k < n;) {
        const float* value = seen.values + k * width;
        const bool all_of_them = k + together <= n;
        for (std::size_t h = 0; h < seen.n_heads; ++h) {
            const float* weights = scores + h * per_head + k;
            if (all_of_them)
                add_frames<together, lanes>(value + h * E, width, weights, E, found + h * E);
            else
                add_frames<1, lanes>(value + h * E, width, weights, E, found + h * E);
        }
        k += all_of_them ? together : 1;
    }
}

CORTEXT_FOR_EACH_PROCESSOR(attend,
                           (const Seen& seen, const float* query, float* scores, float* found),
                           (seen, query, scores, found))

void require_size(bool holds, const char* name) {
    if (!holds) throw std::invalid_argument(std::string(name) + " has a wrong shape");
}

bool maps(const StepLinear& map, std::size_t n_inputs, std::size_t n_outputs) {
    return map.matrix().n_columns() == n_inputs && map.n_rows() == n_outputs;
}

}  // namespace

StepNorm::StepNorm(const float* weight, const float* bias, std::size_t size, float epsilon)
    : size_(size), weight_(fill_up(size)), bias_(fill_up(size)), epsilon_(epsilon) {
    std::copy_n(weight, size, weight_.data());
    std::copy_n(bias, size, bias_.data());
}

void StepNorm::apply(const float* x, float* y) const {
    normalise(x, size_, filled_up(), weight_.data(), bias_.data(), epsilon_, y);
}

StepEmbedding::StepEmbedding(StepNorm patch_norm, StepLinear map, StepNorm norm)
    : patch_norm_(std::move(patch_norm)), map_(std::move(map)), norm_(std::move(norm)) {
    require_size(maps(map_, n_inputs(), n_units()), "weight");
}

void StepEmbedding::apply(const float* x, float* y) const {
    std::vector<float> patch(patch_norm_.filled_up()), normal(patch_norm_.filled_up());
    std::vector<float> mapped(map_.matrix().size()), units(norm_.filled_up());
    std::copy_n(x, n_inputs(), patch.data());
    patch_norm_.apply(patch.data(), normal.data());
    map_.apply(normal.data(), mapped.data());
    norm_.apply(mapped.data(), units.data());
    std::copy_n(units.data(), n_units(), y);
}

StepTransformer::StepTransformer(std::vector<Block> blocks, StepNorm norm, std::size_t n_heads)
    : blocks_(std::move(blocks)), norm_(std::move(norm)), n_heads_(n_heads) {
    require_size(!blocks_.empty(), "blocks");
    require_size(n_heads_ > 0 && width() % n_heads_ == 0, "n_heads");
    for (const Block& block : blocks_) {
        const std::size_t n_wide = block.widen.n_rows();
        require_size(block.attention_norm.size() == n_units(), "attention_norm");
        require_size(maps(block.qkv, n_units(), width()), "qkv");
        require_size(!block.distance_bias.empty(), "distance_bias");
        require_size(maps(block.attended, width(), n_units()), "attended");
        require_size(block.feed_forward_norm.size() == n_units(), "feed_forward_norm");
        require_size(maps(block.widen, n_units(), n_wide), "widen");
        require_size(maps(block.narrow, n_wide, n_units()), "narrow");
    }
}

void StepTransformer::set_prefetch(Prefetch prefetch) {
    for (Block& block : blocks_)
        for (StepLinear* map : {&block.qkv, &block.attended, &block.widen, &block.narrow})
            map->set_prefetch(prefetch);
}

void StepTransformer::step(const float* x, const KeptFrames& kept, float* y) const {
    const std::size_t D = n_units(), filled_up = norm_.filled_up(), n_frames = kept.n_before + 1;
    std::size_t n_wide = 0;
    for (const Block& block : blocks_) n_wide = std::max(n_wide, block.widen.matrix().size());
    const std::size_t n_qkv = blocks_.front().qkv.matrix().size();
    std::vector<float> sum(filled_up), normal(filled_up), qkv(n_qkv), found(width()), wide(n_wide);
    std::vector<float> added(blocks_.front().narrow.matrix().size());
    std::vector<float> scores(n_heads_ * fill_up(n_frames));
    std::copy_n(x, D, sum.data());
    for (std::size_t l = 0; l < n_layers(); ++l) {
        const Block& block = blocks_[l];
        float* const keys = kept.keys + l * kept.n_rows * width();
        float* const values = kept.values + l * kept.n_rows * width();
        block.attention_norm.apply(sum.data(), normal.data());
        block.qkv.apply(normal.data(), qkv.data());
        std::copy_n(&qkv[block.qkv.matrix().block(1)], width(), keys + kept.row * width());
        std::copy_n(&qkv[block.qkv.matrix().block(2)], width(), values + kept.row * width());
        const std::size_t first = (kept.row - kept.n_before) * width();
        const Seen seen{keys + first, values + first,     n_frames,
                        n_heads_,     width() / n_heads_, block.distance_bias};
        attend(seen, qkv.data(), scores.data(), found.data());
        block.attended.apply(found.data(), added.data());
        add_vector(sum.data(), added.data(), filled_up);
        block.feed_forward_norm.apply(sum.data(), normal.data());
        block.widen.apply(normal.data(), wide.data());
        gelu(wide.data(), block.widen.matrix().size());
        block.narrow.apply(wide.data(), added.data());
        add_vector(sum.data(), added.data(), filled_up);
    }
    norm_.apply(sum.data(), normal.data());
    std::copy_n(normal.data(), D, y);
}

}  // namespace cortext
