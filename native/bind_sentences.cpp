#include "bind.hpp"

namespace cortext {

void bind_sentences(nanobind::module_&) {}

}  // namespace cortext
