#include "bind.hpp"

namespace cortext {

void bind_engine(nanobind::module_&) {}

}  // namespace cortext
