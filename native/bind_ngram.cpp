// cortext._native.NGram, its State, and write_binary.
#include <nanobind/operators.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <filesystem>

#include "bind.hpp"
#include "ngram.hpp"

namespace nb = nanobind;

namespace cortext {
namespace {

// Calls `use(word)` for the words of a text that blanks (or tabs, or line ends) separate.
template <class Use>
void for_words(std::string_view text, Use use) {
    constexpr std::string_view kBlanks = " \t\r\n";
    for (std::size_t at = text.find_first_not_of(kBlanks); at != std::string_view::npos;) {
        const std::size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
        use(text.substr(at, end - at));
        at = text.find_first_not_of(kBlanks, end);
    }
}

// What of a text a model predicts, and how well; the fields of cortext.decoding.ngram.TextScore in
// their order.
struct TextSums {
    std::uint64_t sentences = 0, words = 0, unknown_words = 0;
    double log_prob = 0.0, log_prob_known = 0.0;
};

void add_sentence(const NGram& ngram, std::string_view text, TextSums& sums) {
    NGramState state = ngram.begin(), next;
    for_words(text, [&](std::string_view word) {
        const WordIndex index = ngram.index(word);
        const double log_prob = ngram.score(state, index, next);
        state = next;
        ++sums.words;
        sums.log_prob += log_prob;
        if (index == 0) {
            ++sums.unknown_words;
        } else {
            sums.log_prob_known += log_prob;
        }
    });
    const double end = ngram.end(state);
    sums.log_prob += end;
    sums.log_prob_known += end;
    ++sums.sentences;
}

nb::tuple score_text(const NGram& ngram, const std::vector<std::string>& sentences) {
    TextSums sums;
    {
        nb::gil_scoped_release release;
        for (const std::string& sentence : sentences) add_sentence(ngram, sentence, sums);
    }
    return nb::make_tuple(sums.sentences, sums.words, sums.unknown_words, sums.log_prob,
                          sums.log_prob_known);
}

void write_paths(const std::filesystem::path& arpa, const std::filesystem::path& out,
                 const std::string& type, int prob_bits, int backoff_bits, int pointer_bits,
                 std::uint64_t memory_bytes, const std::filesystem::path& temporary) {
    write_binary(arpa.string(), out.string(), type, prob_bits, backoff_bits, pointer_bits,
                 memory_bytes, temporary.string());
}

// Python's strings; bytes of a damaged file that are no text become U+FFFD.
nb::list python_words(const std::vector<std::string>& words) {
    nb::list result;
    for (const std::string& word : words) {
        result.append(nb::steal(
            PyUnicode_DecodeUTF8(word.data(), static_cast<Py_ssize_t>(word.size()), "replace")));
    }
    return result;
}

bool is_special(std::string_view word) {
    return word == "<s>" || word == "</s>" || word == "<unk>";
}

void bind_state(nb::module_& module) {
    nb::class_<NGramState>(module, "State")
        .def(
            "__eq__", [](const NGramState& self, const NGramState& other) { return self == other; },
            nb::is_operator())
        .def(
            "__hash__",
            [](const NGramState& self) { return static_cast<std::int64_t>(hash_value(self) >> 1); })
        .def_prop_ro("length",
                     [](const NGramState& self) { return static_cast<int>(self.length); });
}

}  // namespace

void bind_ngram(nb::module_& module) {
    bind_state(module);
    nb::class_<NGram>(module, "NGram")
        .def_static(
            "open", [](const std::filesystem::path& path) { return NGram::open(path.string()); },
            nb::arg("path"), nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("path", [](const NGram& self) { return self.path(); })
        .def_prop_ro("order", [](const NGram& self) { return self.order(); })
        .def_prop_ro("counts", [](const NGram& self) { return nb::tuple(nb::cast(self.counts())); })
        .def_prop_ro("kind", [](const NGram& self) { return self.kind(); })
        .def_prop_ro("bytes", [](const NGram& self) { return self.bytes(); })
        .def("words", [](const NGram& self) { return python_words(self.words()); })
        .def("__contains__",
             [](const NGram& self, std::string_view word) {
                 return self.index(word) != 0 && !is_special(word);
             })
        .def("begin", [](const NGram& self) { return self.begin(); })
        .def("empty", [](const NGram& self) { return self.empty(); })
        .def(
            "score",
            [](const NGram& self, const NGramState& state, std::string_view word) {
                NGramState next{};
                const double log_prob = self.score(state, self.index(word), next);
                return nb::make_tuple(log_prob, next);
            },
            nb::arg("state"), nb::arg("word"))
        .def(
            "end", [](const NGram& self, const NGramState& state) { return self.end(state); },
            nb::arg("state"))
        .def(
            "unigram",
            [](const NGram& self, std::string_view word) { return self.unigram(self.index(word)); },
            nb::arg("word"))
        .def(
            "sentence",
            [](const NGram& self, std::string_view text) {
                TextSums sums;
                add_sentence(self, text, sums);
                return sums.log_prob;
            },
            nb::arg("text"))
        .def(
            "score_text",
            [](const NGram& self, const std::vector<std::string>& sentences) {
                return score_text(self, sentences);
            },
            nb::arg("sentences"));
    module.def("write_binary", &write_paths, nb::arg("arpa"), nb::arg("out"),
               nb::arg("type") = "trie", nb::arg("prob_bits") = 8, nb::arg("backoff_bits") = 8,
               nb::arg("pointer_bits") = 22, nb::arg("memory_bytes") = std::uint64_t{1} << 30,
               nb::arg("temporary") = "", nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace cortext
