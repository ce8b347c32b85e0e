// Vectors of 16, 8 or 4 floats, and functions of which there is a version for each of them: the one
// for the widest vectors that the processor computes with is called. Compilers keep a vector that
// is wider than its registers in memory, which on a processor with AVX2 took three times as long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "processor.hpp"

// What such a function calls must become part of it.
#define CORTEXT_INLINE static inline __attribute__((always_inline))

// Defines `void name(parameters)`, which calls `name_of<lanes>(arguments)`, an inline template.
#ifdef __x86_64__
#define CORTEXT_FOR_EACH_PROCESSOR(name, parameters, arguments)                              \
    __attribute__((                                                                          \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) void name##_16 parameters {  \
        name##_of<16> arguments;                                                             \
    }                                                                                        \
    __attribute__((target("avx2,fma"))) void name##_8 parameters { name##_of<8> arguments; } \
    void name##_4 parameters { name##_of<4> arguments; }                                     \
    void name parameters {                                                                   \
        const std::size_t lanes = vector_lanes();                                            \
        return lanes == 16  ? name##_16 arguments                                            \
               : lanes == 8 ? name##_8 arguments                                             \
                            : name##_4 arguments;                                            \
    }
#else
#define CORTEXT_FOR_EACH_PROCESSOR(name, parameters, arguments) \
    void name parameters { name##_of<4> arguments; }
#endif

namespace cortext {

template <std::size_t lanes>
struct Lanes;

#define CORTEXT_LANES(n)                                                               \
    template <>                                                                        \
    struct Lanes<n> {                                                                  \
        using Floats = float __attribute__((vector_size(n * sizeof(float))));          \
        using Words = std::uint32_t __attribute__((vector_size(n * sizeof(float))));   \
        using Integers = std::int32_t __attribute__((vector_size(n * sizeof(float)))); \
    };
CORTEXT_LANES(16)
CORTEXT_LANES(8)
CORTEXT_LANES(4)
#undef CORTEXT_LANES

template <std::size_t lanes>
using Floats = typename Lanes<lanes>::Floats;
template <std::size_t lanes>
using Words = typename Lanes<lanes>::Words;
template <std::size_t lanes>
using Integers = typename Lanes<lanes>::Integers;

template <typename Vector>
CORTEXT_INLINE Vector load(const void* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <typename Vector>
CORTEXT_INLINE void store(float* to, const Vector& x) {
    std::memcpy(to, &x, sizeof x);
}

template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> all(float x) {
    return Floats<lanes>{} + x;
}

}  // namespace cortext
