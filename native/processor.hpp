// How many floats the processor computes with at once.
#pragma once

#include <cstddef>

namespace cortext {

// 16 with AVX-512, 8 with AVX2, else 4; or fewer, where `use_vector_lanes` asked for them.
std::size_t vector_lanes();
// Whether the processor has vectors of 16, 8 or 4 floats; uses them from now on, if it does.
bool use_vector_lanes(std::size_t lanes);

}  // namespace cortext
