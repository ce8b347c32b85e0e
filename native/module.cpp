// The extension module cortext._native: errors, and the parts that other files bind.
#include "bind.hpp"
#include "error.hpp"

namespace nb = nanobind;

namespace {

// Raises the exception `name` of cortext.errors for an error of the engine.
void raise(const char* name, const cortext::Error& error) {
    nb::object type = nb::module_::import_("cortext.errors").attr(name);
    nb::object where = error.where().empty() ? nb::object(nb::none()) : nb::object(nb::str(error.where().c_str()));
    nb::object fix = error.fix().empty() ? nb::object(nb::none()) : nb::object(nb::str(error.fix().c_str()));
    nb::object exception = type(nb::str(error.what()), nb::arg("where") = where, nb::arg("fix") = fix);
    PyErr_SetObject(type.ptr(), exception.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const cortext::ModelError& error) {
        raise("LanguageModelError", error);
    } catch (const cortext::Error& error) {
        raise("DecodingError", error);
    }
}

}  // namespace

NB_MODULE(_native, module) {
    nb::register_exception_translator(translate, nullptr);
    cortext::bind_ngram(module);
    cortext::bind_sentences(module);
    cortext::bind_engine(module);
}
