#include "recurrence.hpp"

#include <algorithm>
#include <future>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "recurrence_avx512.hpp"

namespace cortext {

#ifdef CORTEXT_AVX512

namespace {

constexpr std::size_t most_threads = 256;

// For each of at most `n_threads` threads its trials, the longest first; each gets about as many
// steps.
std::vector<std::vector<std::size_t>> share_out(const RecurrentLayer& layer,
                                                std::size_t n_threads) {
    const auto length = [&](std::size_t trial) {
        return layer.starts[trial + 1] - layer.starts[trial];
    };
    std::vector<std::size_t> order(layer.n_trials);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return length(a) > length(b); });
    const std::size_t n =
        std::max<std::size_t>(1, std::min({n_threads, layer.n_trials, most_threads}));
    std::vector<std::vector<std::size_t>> shares(n);
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::size_t place = i % (2 * n);  // there and back again
        shares[place < n ? place : 2 * n - 1 - place].push_back(order[i]);
    }
    return shares;
}

// Calls work(share) for each thread's trials, the first in this thread.
template <typename Work>
void in_threads(const RecurrentLayer& layer, std::size_t n_threads, const Work& work) {
    const auto shares = share_out(layer, n_threads);
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < shares.size(); ++i) {
        others.push_back(std::async(std::launch::async, [&, i] {
            work(avx512::Share{shares[i].data(), shares[i].size()});
        }));
    }
    work(avx512::Share{shares[0].data(), shares[0].size()});
    for (auto& other : others) other.get();
}

// Room that begins where a vector does: no vector of weights lies across two cache lines.
class Aligned {
public:
    explicit Aligned(std::size_t size) : room_(size + slack) {}

    bfloat16* data() {
        const auto address = reinterpret_cast<std::uintptr_t>(room_.data());
        return room_.data() + (alignment - address % alignment) % alignment / sizeof(bfloat16);
    }

private:
    static constexpr std::size_t alignment = 64, slack = alignment / sizeof(bfloat16);
    std::vector<bfloat16> room_;
};

}  // namespace

bool can_run_recurrence() {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

void run_forward(const RecurrentLayer& layer, const ForwardPass& pass, std::size_t n_threads) {
    Aligned packed(avx512::forward_weight_size(layer.n_units));
    avx512::pack_forward_weight(layer, packed.data());
    in_threads(layer, n_threads, [&](const avx512::Share& share) {
        avx512::forward(layer, pass, packed.data(), share);
    });
}

void run_backward(const RecurrentLayer& layer, const BackwardPass& pass, std::size_t n_threads) {
    Aligned packed(avx512::backward_weight_size(layer.n_units));
    avx512::pack_backward_weight(layer, packed.data());
    in_threads(layer, n_threads, [&](const avx512::Share& share) {
        std::vector<float> d_h(share.n_trials * (layer.n_units + avx512::panel_width));
        avx512::backward(layer, pass, packed.data(), share, d_h.data());
    });
    const auto n_rows = static_cast<std::size_t>(layer.starts[layer.n_trials]);
    avx512::sum_rows(pass.d_recurrent_NG, n_rows, 3 * layer.n_units, pass.d_b_hh_G);
}

#else

bool can_run_recurrence() { return false; }

void run_forward(const RecurrentLayer&, const ForwardPass&, std::size_t) {
    throw std::logic_error("no AVX512-BF16");
}

void run_backward(const RecurrentLayer&, const BackwardPass&, std::size_t) {
    throw std::logic_error("no AVX512-BF16");
}

#endif

}  // namespace cortext
