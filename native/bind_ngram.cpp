// cortext._native.NGram.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "ngram.hpp"

namespace nb = nanobind;

namespace cortext {

void bind_ngram(nb::module_& module) {
    nb::class_<NGram>(module, "NGram")
        .def_static("open", [](const std::string& path) { return std::const_pointer_cast<NGram>(NGram::open(path)); })
        .def_prop_ro("order", &NGram::order)
        .def_prop_ro("kind", &NGram::kind)
        .def("words", &NGram::words);
}

}  // namespace cortext
