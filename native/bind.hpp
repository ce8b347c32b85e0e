// What the parts of the extension module register.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace cortext {

// An array's numbers must lie at multiples of their size, where the compiler takes them to be.
template <typename Array>
void require_aligned(const Array& array, const char* name) {
    if (reinterpret_cast<std::uintptr_t>(array.data()) % sizeof(typename Array::Scalar) != 0) {
        throw std::invalid_argument(std::string(name) + " is not aligned; give a copy");
    }
}

void bind_ngram(nanobind::module_& module);
void bind_sentences(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_recurrence(nanobind::module_& module);
void bind_step(nanobind::module_& module);

}  // namespace cortext
