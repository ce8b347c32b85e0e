// What the parts of the extension module register.
#pragma once

#include <nanobind/nanobind.h>

namespace cortext {

void bind_ngram(nanobind::module_& module);
void bind_sentences(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_recurrence(nanobind::module_& module);
void bind_step(nanobind::module_& module);

}  // namespace cortext
