// Vectors of 16, 8 or 4 floats, and functions of which there is a version for each of them: the one
// for the widest vectors that the processor computes with is called. Compilers keep a vector that
// is wider than its registers in memory, which on a processor with AVX2 took three times as long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

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

// e^x to a few units in the last place, for |x| <= 80: 2^n times the Taylor series of e^r for |r|
// <= log(2) / 2.
template <std::size_t lanes>
CORTEXT_INLINE Floats<lanes> exponential(Floats<lanes> x) {
    x = x > 80.0F ? all<lanes>(80.0F) : x;  // NaN stays NaN
    x = x < -80.0F ? all<lanes>(-80.0F) : x;
    const float shift =
        12582912.0F;  // 1.5 * 2^23: what is added to it is rounded to a whole number
    const Floats<lanes> n = (x * 1.44269504F + shift) - shift;
    const Floats<lanes> r =
        (x - n * 0.693359375F) - n * -2.12194440e-4F;  // log(2), its first bits and the rest
    Floats<lanes> sum = all<lanes>(1.0F / 5040);
    for (float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
        sum = sum * r + coefficient;
    }
    const Integers<lanes> exponent = __builtin_convertvector(n, Integers<lanes>) + 127;
    const Words<lanes> power = load<Words<lanes>>(&exponent) << 23;
    return sum * load<Floats<lanes>>(&power);
}

}  // namespace cortext
