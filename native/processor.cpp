#include "processor.hpp"

#include <atomic>

namespace cortext {

namespace {

std::size_t most_lanes() {
#ifdef __x86_64__
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 16;
    if (has_avx2) return 8;
#endif
    return 4;
}

std::atomic<std::size_t>& used_lanes() {
    static std::atomic<std::size_t> lanes{most_lanes()};
    return lanes;
}

}  // namespace

std::size_t vector_lanes() { return used_lanes().load(std::memory_order_relaxed); }

bool use_vector_lanes(std::size_t lanes) {
    if ((lanes != 16 && lanes != 8 && lanes != 4) || lanes > most_lanes()) return false;
    used_lanes() = lanes;
    return true;
}

}  // namespace cortext
