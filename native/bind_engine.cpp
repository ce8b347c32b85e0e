// The search engine for Python: Model, Stream and Result. Frames come in checked
// (cortext/decoding/stream.py).
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "error.hpp"
#include "stream.hpp"

namespace nb = nanobind;

namespace cortext {

namespace {

using LogProbs = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Weights =
    std::vector<std::tuple<std::size_t, std::size_t, double>>;  // word, pronunciation, log weight
using Added = std::vector<std::tuple<std::string, std::string, std::vector<double>>>;

// What the Python side sees to; a slip there must not become a wrong address here.
void check(bool holds, const char* what) {
    if (!holds) throw Error(what);
}

void check(const Model& model, const Options& options) {
    check_options(options, static_cast<std::size_t>(model.tokens().count()));
}

// Pronunciations as text: one character a phoneme, blanks between pronunciations. The first 58
// phonemes are the characters from 'A' to 'z', the others those from U+0100 on, two bytes each in
// UTF-8 (cortext/text/lexicon.py). Any other byte is a phoneme that no inventory has.
Spelling spelling_of(std::string_view codes) {
    constexpr int kAscii = 'z' - 'A' + 1;
    constexpr std::uint8_t kNoPhoneme = 255;
    Spelling spelling(1);
    for (std::size_t at = 0; at < codes.size(); ++at) {
        const auto byte = static_cast<std::uint8_t>(codes[at]);
        if (byte == ' ') {
            spelling.emplace_back();
            continue;
        }
        int phoneme = byte - 'A';
        if (byte >= 0xC4 && byte < 0xC8 && at + 1 < codes.size()) {
            phoneme = kAscii + (byte - 0xC4) * 64 + (static_cast<std::uint8_t>(codes[++at]) & 0x3F);
        } else if (phoneme < 0 || phoneme >= kAscii) {
            phoneme = kNoPhoneme;
        }
        spelling.back().tokens.push_back(
            static_cast<std::uint8_t>(std::min<int>(phoneme, kNoPhoneme)));
    }
    for (Pronunciation& pronunciation : spelling) pronunciation.log_weight = 0.0;
    return spelling;
}

std::shared_ptr<Model> make_model(std::shared_ptr<NGram> ngram,
                                  const std::vector<std::string_view>& words,
                                  const std::vector<std::string_view>& codes,
                                  const Weights& weights, int n_phonemes, bool has_sil) {
    check(words.size() == codes.size(), "as many pronunciations as words are needed");
    std::vector<Entry> entries(words.size());
    for (std::size_t word = 0; word < words.size(); ++word) {
        entries[word] = {std::string(words[word]), spelling_of(codes[word])};
    }
    for (const auto& [word, pronunciation, log_weight] : weights) {
        check(word < entries.size() && pronunciation < entries[word].spelling.size(),
              "a weight of no pronunciation");
        entries[word].spelling[pronunciation].log_weight = log_weight;
    }
    nb::gil_scoped_release release;
    auto lexicon = std::make_shared<Lexicon>(entries, *ngram, 0, n_phonemes);
    auto vocabulary = std::make_shared<Vocabulary>(
        std::move(ngram), std::move(lexicon), std::vector<Entry>{}, std::vector<std::string>{},
        std::unordered_map<std::string, double>{}, n_phonemes);
    return std::make_shared<Model>(std::move(vocabulary), Tokens{n_phonemes, has_sil});
}

std::shared_ptr<Model> changed_model(const Model& model, const Added& added,
                                     const std::vector<std::string>& removed,
                                     const std::unordered_map<std::string, double>& bonuses) {
    std::vector<Entry> entries;
    for (const auto& [word, codes, log_weights] : added) {
        entries.push_back({word, spelling_of(codes)});
        Spelling& spelling = entries.back().spelling;
        check(log_weights.size() <= spelling.size(), "a weight of no pronunciation");
        for (std::size_t each = 0; each < log_weights.size(); ++each)
            spelling[each].log_weight = log_weights[each];
    }
    const Vocabulary& now = model.vocabulary();
    auto vocabulary = std::make_shared<Vocabulary>(now.shared_ngram(), now.base(), entries, removed,
                                                   bonuses, model.tokens().n_phonemes);
    return std::make_shared<Model>(std::move(vocabulary), model.tokens());
}

// The hypotheses of an utterance; turned into Python objects one by one, on access.
struct Result {
    std::shared_ptr<const Model> model;
    std::vector<NBestEntry> hypotheses;

    std::string text(std::size_t number) const {
        std::string joined;
        for (WordId word : hypotheses.at(number).words) {
            if (!joined.empty()) joined += ' ';
            joined += model->vocabulary().text(word);
        }
        return joined;
    }
    auto scores(std::size_t number) const {
        const NBestEntry& found = hypotheses.at(number);
        return std::make_tuple(found.score, found.lm_score, found.sil_score, found.hotword_score,
                               found.added_score);
    }
    auto words(std::size_t number) const {
        const NBestEntry& found = hypotheses.at(number);
        std::vector<std::tuple<std::string_view, int, int, double>> words;
        for (std::size_t each = 0; each < found.words.size(); ++each) {
            double confidence = each < found.confidences.size() ? found.confidences[each] : 1.0;
            words.emplace_back(model->vocabulary().text(found.words[each]), found.spans[each].first,
                               found.spans[each].end, confidence);
        }
        return words;
    }
};

const Options& checked(const Model& model, const Options& options) {
    check(model, options);
    return options;
}

std::vector<int> checked(const Model& model, std::vector<int> columns) {
    const Tokens tokens = model.tokens();
    bool are_columns = columns.size() == static_cast<std::size_t>(tokens.count());
    for (int token = 0; are_columns && token < tokens.count(); ++token) {
        const int column = columns[static_cast<std::size_t>(token)];
        const bool is_none = token == tokens.sil() && !tokens.has_sil;
        are_columns = is_none ? column == -1 : column >= 0 && column < tokens.n_columns();
    }
    check(are_columns, "one column a token is needed");
    return columns;
}

void check(const Model& model, const LogProbs& log_probs) {
    check(log_probs.shape(1) == static_cast<std::size_t>(model.tokens().n_columns()),
          "one log-probability a token is needed");
}

// A stream that refuses two threads at once, and everything after its end.
class GuardedStream {
public:
    GuardedStream(const std::shared_ptr<Model>& model, const Options& options,
                  std::vector<int> columns, std::shared_ptr<NGram> second, bool has_hook)
        : stream_(model, checked(*model, options), checked(*model, std::move(columns)),
                  std::move(second), has_hook) {}

    template <class Work>
    auto alone(Work work) {
        if (busy_.test_and_set()) {
            throw Error("the stream is in use by another thread", "",
                        "give each thread a stream of its own");
        }
        struct Free {
            std::atomic_flag& flag;
            ~Free() { flag.clear(); }
        } free{busy_};
        if (is_finished_)
            throw Error("the stream is finished", "", "open a new one for the next utterance");
        nb::gil_scoped_release release;
        return work(stream_);
    }
    std::vector<NBestEntry> finish() {
        return alone([this](Stream& inner) {
            is_finished_ = true;
            return inner.finish();
        });
    }
    std::shared_ptr<const Model> model() const { return stream_.model(); }

private:
    Stream stream_;
    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    bool is_finished_ = false;
};

std::string joined(const Model& model, const std::vector<WordId>& words) {
    std::string text;
    for (WordId word : words)
        text.append(text.empty() ? "" : " ").append(model.vocabulary().text(word));
    return text;
}

std::pair<std::string, std::string> partial(GuardedStream& stream) {
    auto [stable, tail] = stream.alone([](Stream& inner) { return inner.partial(); });
    return {joined(*stream.model(), stable), joined(*stream.model(), tail)};
}

nb::tuple live(GuardedStream& stream) {
    Stream::Live live = stream.alone([](Stream& inner) { return inner.live(); });
    nb::list words;
    for (const auto& each : live.words) {
        nb::list own;
        for (WordId word : each) own.append(nb::cast(stream.model()->vocabulary().text(word)));
        words.append(nb::tuple(own));
    }
    return nb::make_tuple(live.ids, live.parent_ids, words, live.acoustic, live.lm, live.added);
}

void bind_options(nb::module_& module) {
    nb::class_<Options> options(module, "Options");
    options.def(nb::init<>()).def_rw("offsets", &Options::offsets);
    nb::dict bounds;
#define CORTEXT_BIND(type, name, initial, low, high) \
    options.def_rw(#name, &Options::name);           \
    bounds[#name] = nb::make_tuple(type(low), type(high));
    CORTEXT_OPTIONS(CORTEXT_BIND)
#undef CORTEXT_BIND
    options.attr("BOUNDS") = bounds;
}

Result score(const std::shared_ptr<Model>& model, const std::vector<std::string>& words,
             LogProbs log_probs, std::vector<int> columns, const Options& options) {
    std::vector<WordId> sentence;
    for (const std::string& word : words) {
        sentence.push_back(model->vocabulary().find(word));
        if (sentence.back() == kNoWord)
            throw Error("the word '" + word + "' is not in the lexicon");
    }
    check(*model, log_probs);
    check(*model, options);
    nb::gil_scoped_release release;
    Frames frames(model->tokens(), checked(*model, std::move(columns)));
    for (std::size_t frame = 0; frame < log_probs.shape(0); ++frame) {
        frames.add(log_probs.data() + frame * log_probs.shape(1), options);
    }
    return {model, model->score({sentence}, frames, options, model->vocabulary().ngram())};
}

}  // namespace

void bind_engine(nb::module_& module) {
    bind_options(module);
    nb::class_<Model>(module, "Model")
        .def_static("make", &make_model, nb::arg("ngram"), nb::arg("words"), nb::arg("codes"),
                    nb::arg("weights"), nb::arg("n_phonemes"), nb::arg("has_sil") = true)
        .def("changed", &changed_model, nb::arg("added"), nb::arg("removed"), nb::arg("bonuses"),
             nb::call_guard<nb::gil_scoped_release>())
        .def("__contains__",
             [](const Model& model, std::string_view word) {
                 return model.vocabulary().find(word) != kNoWord;
             })
        .def("score", &score, nb::arg("words"), nb::arg("log_probs").noconvert(),
             nb::arg("columns"), nb::arg("options"));
    nb::class_<Result>(module, "Result")
        .def("__len__", [](const Result& result) { return result.hypotheses.size(); })
        .def("text", &Result::text)
        .def("scores", &Result::scores)
        .def("words", &Result::words);
    nb::class_<GuardedStream>(module, "Stream")
        .def(nb::init<std::shared_ptr<Model>, const Options&, std::vector<int>,
                      std::shared_ptr<NGram>, bool>(),
             nb::arg("model"), nb::arg("options"), nb::arg("columns"), nb::arg("second").none(),
             nb::arg("has_hook"), nb::call_guard<nb::gil_scoped_release>())
        .def(
            "advance",
            [](GuardedStream& stream, LogProbs log_probs) {
                check(*stream.model(), log_probs);
                stream.alone(
                    [&](Stream& inner) { inner.advance(log_probs.data(), log_probs.shape(0)); });
            },
            nb::arg("log_probs").noconvert())
        .def("set_options",
             [](GuardedStream& stream, const Options& options) {
                 check(*stream.model(), options);
                 stream.alone([&](Stream& inner) { inner.set_options(options); });
             })
        .def("partial", &partial)
        .def("live", &live)
        .def(
            "add_scores",
            [](GuardedStream& stream, const std::vector<std::uint32_t>& ids, Scores scores) {
                check(ids.size() == scores.shape(0), "one score a hypothesis is needed");
                check(std::all_of(scores.data(), scores.data() + ids.size(), is_sound),
                      "a score is not a number or beyond a million");
                stream.alone([&](Stream& inner) { inner.add_scores(ids, scores.data()); });
            },
            nb::arg("ids"), nb::arg("scores").noconvert())
        .def("finish", [](GuardedStream& stream) {
            auto hypotheses = stream.finish();
            return Result{stream.model(), std::move(hypotheses)};
        });
}

}  // namespace cortext
