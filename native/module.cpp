// The extension module cortext._native: errors, and the parts that other files bind.
#include <cstring>

#include "bind.hpp"
#include "error.hpp"

namespace nb = nanobind;

namespace {

// Text of a file may be part of it, so what is no UTF-8 becomes U+FFFD; empty is None.
nb::object text(const char* from) {
    if (*from == '\0') return nb::none();
    return nb::steal(
        PyUnicode_DecodeUTF8(from, static_cast<Py_ssize_t>(std::strlen(from)), "replace"));
}

// Raises the exception `name` of cortext.errors for an error of the engine.
void raise(const char* name, const cortext::Error& error) {
    nb::object type = nb::module_::import_("cortext.errors").attr(name);
    nb::object exception = type(text(error.what()), nb::arg("where") = text(error.where().c_str()),
                                nb::arg("fix") = text(error.fix().c_str()));
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

NB_MODULE(_native_parts, module) {
    nb::register_exception_translator(translate, nullptr);
    cortext::bind_ngram(module);
    cortext::bind_sentences(module);
    cortext::bind_engine(module);
    cortext::bind_recurrence(module);
    cortext::bind_step(module);
}

// A process has one table of nanobind's types, which the module of a second interpreter would
// replace: the first one's classes would no longer know their own objects.
extern "C" NB_EXPORT PyObject* PyInit__native() {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(
            PyExc_ImportError,
            "cortext works only in the main interpreter of a process; start another process");
        return nullptr;
    }
    return PyInit__native_parts();
}
