// Sums of probabilities that are given by their logarithms.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace cortext {

inline double log_add(double one, double other) {
    double high = std::max(one, other), low = std::min(one, other);
    return low == -std::numeric_limits<double>::infinity()
               ? high
               : high + std::log1p(std::exp(low - high));
}

// log(1 + exp(-x)) for x >= 0 by linear interpolation, to 2e-6. The table takes 8 KB, which fits
// into the first cache of any processor.
class SoftPlus {
public:
    SoftPlus() {
        for (int each = 0; each <= kSize; ++each) {
            values_[static_cast<std::size_t>(each)] =
                static_cast<float>(std::log1p(std::exp(-each / kPerUnit)));
        }
    }
    float operator()(float x) const {
        if (!(x < kEnd)) return 0.0f;
        float at = x * static_cast<float>(kPerUnit);
        auto below = static_cast<std::size_t>(at);
        return values_[below] +
               (at - static_cast<float>(below)) * (values_[below + 1] - values_[below]);
    }

private:
    static constexpr int kSize = 2048;
    static constexpr double kPerUnit = 128.0;
    static constexpr float kEnd = 15.9f;  // e^-15.9 is 1.2e-7, a float's precision at 1
    std::array<float, kSize + 1> values_;
};

inline const SoftPlus soft_plus;

// To 2e-6, and much quicker: the search only ranks, sentences are scored exactly.
inline float rough_log_add(float one, float other) {
    float high = std::max(one, other), low = std::min(one, other);
    return low == -std::numeric_limits<float>::infinity() ? high : high + soft_plus(high - low);
}

}  // namespace cortext
