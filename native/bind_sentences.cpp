// cortext._native.score_sentences.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind.hpp"
#include "error.hpp"
#include "options.hpp"
#include "sentences.hpp"

namespace nb = nanobind;

namespace cortext {

namespace {

using Scores = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Spellings =
    std::vector<std::vector<std::pair<std::vector<int>, double>>>;  // of the words of a sentence
using Result = std::tuple<double, int, std::vector<std::pair<int, int>>>;

Spelling to_spelling(const std::vector<std::pair<std::vector<int>, double>>& pronunciations,
                     const SentenceOptions& options, std::size_t n_tokens) {
    Spelling spelling;
    if (pronunciations.size() > kMostPronunciations)
        throw Error("a word has more than 1,000 pronunciations");
    for (const auto& [tokens, log_weight] : pronunciations) {
        spelling.push_back({{}, log_weight});
        for (int token : tokens) {
            if (token < 0 || token >= static_cast<int>(n_tokens) || token == options.blank ||
                token == options.sil) {
                throw Error("a pronunciation has the token " + std::to_string(token) +
                            ", which is no phoneme");
            }
            spelling.back().tokens.push_back(static_cast<std::uint8_t>(token));
        }
        if (tokens.empty()) throw Error("a pronunciation has no tokens");
        if (!is_sound(log_weight)) throw Error("a weight is not a number or beyond a million");
    }
    return spelling;
}

std::vector<Result> score(const std::vector<Spellings>& sentences, Scores scores_PV,
                          double acoustic_scale, double sil_cost, bool logadd, bool sil_required,
                          int blank, int sil) {
    const SentenceOptions options{acoustic_scale, sil_cost, logadd, sil_required, blank, sil};
    const std::size_t P = scores_PV.shape(0), V = scores_PV.shape(1);
    if (V > 256 || blank < 0 || blank >= static_cast<int>(V) || sil < 0 ||
        sil >= static_cast<int>(V) || blank == sil) {
        throw Error("blank and SIL must be two of at most 256 tokens");
    }
    if (!is_sound(acoustic_scale) || !is_sound(sil_cost)) {
        throw Error("acoustic_scale or sil_cost is not a number or beyond a million");
    }
    require_aligned(scores_PV, "scores_PV");
    std::vector<std::vector<Spelling>> spellings;
    for (const Spellings& sentence : sentences) {
        spellings.emplace_back();
        for (const auto& word : sentence) spellings.back().push_back(to_spelling(word, options, V));
    }
    std::vector<std::vector<const Spelling*>> words;
    for (const auto& sentence : spellings) {
        words.emplace_back();
        for (const Spelling& spelling : sentence) words.back().push_back(&spelling);
    }
    std::vector<SentencePaths> found;
    {
        nb::gil_scoped_release released;
        found = score_sentences(words, scores_PV.data(), P, V, options);
    }
    std::vector<Result> results;
    for (const SentencePaths& paths : found) {
        std::vector<std::pair<int, int>> spans;
        for (const Span& span : paths.spans) spans.emplace_back(span.first, span.end);
        results.emplace_back(paths.score, paths.boundaries, std::move(spans));
    }
    return results;
}

}  // namespace

void bind_sentences(nb::module_& module) {
    module.def("score_sentences", &score, nb::arg("sentences"), nb::arg("scores_PV"), nb::kw_only(),
               nb::arg("acoustic_scale"), nb::arg("sil_cost"), nb::arg("logadd"),
               nb::arg("sil_required"), nb::arg("blank"), nb::arg("sil"),
               "Exact scores of sentences, for tests: (score, boundaries, spans) of each. See "
               "decoding/nbest.py.");
}

}  // namespace cortext
