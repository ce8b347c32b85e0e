#include "options.hpp"

#include <algorithm>
#include <sstream>

#include "error.hpp"

namespace cortext {

namespace {

template <class Number>
void check_bounds(const char* name, Number value, Number low, Number high) {
    if (value >= low && value <= high) return;  // NaN is in no bounds
    std::ostringstream what;
    what << name << " is " << value << "; it must be at least " << low << " and at most " << high;
    throw Error(what.str());
}

}  // namespace

void check_options(const Options& options, std::size_t n_tokens) {
#define CORTEXT_CHECK(type, name, initial, low, high) \
    check_bounds<type>(#name, options.name, low, high);
    CORTEXT_OPTIONS(CORTEXT_CHECK)
#undef CORTEXT_CHECK
    if (options.offsets.size() != n_tokens) throw Error("one offset a token is needed");
    if (!std::all_of(options.offsets.begin(), options.offsets.end(), is_sound)) {
        throw Error("an offset is not a number or beyond a million");
    }
}

}  // namespace cortext
