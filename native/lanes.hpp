// Sixteen floats that are computed together, on any processor: compilers split them where its
// registers are narrower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// A function of which there is a version for each generation of x86-64, chosen as it is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(CORTEXT_SANITIZE)
#define CORTEXT_FOR_EACH_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CORTEXT_FOR_EACH_PROCESSOR
#endif
// What such a function calls must become part of it.
#define CORTEXT_INLINE static inline __attribute__((always_inline))

namespace cortext {

constexpr std::size_t lanes = 16;
using Floats = float __attribute__((vector_size(lanes * sizeof(float))));
using Words = std::uint32_t __attribute__((vector_size(lanes * sizeof(std::uint32_t))));
using Integers = std::int32_t __attribute__((vector_size(lanes * sizeof(std::int32_t))));

template <typename Vector>
CORTEXT_INLINE Vector load(const void* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

CORTEXT_INLINE void store(float* to, const Floats& x) { std::memcpy(to, &x, sizeof x); }

CORTEXT_INLINE Floats all(float x) { return Floats{} + x; }

}  // namespace cortext
