// A model that searches share, and a decoder stream: the search through one utterance, from
// log-probabilities to ranked sentences.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lexicon.hpp"
#include "options.hpp"
#include "search.hpp"
#include "sentences.hpp"

namespace cortext {

// Log-probabilities below are alike, minus infinity included, so that every sentence that fits into
// the frames has a finite score.
constexpr double kFloor = -1000.0;

// A sentence of the n-best list with its exact scores, natural logs.
struct NBestEntry {
    std::vector<WordId> words;
    double score, lm_score, sil_score, hotword_score, added_score;
    std::vector<Span> spans;          // frames of the words
    std::vector<double> confidences;  // of the words
};

// Frames as scaled scores, in the engine's order of tokens, one row after another.
class Frames {
public:
    // `columns` gives the place of each of the engine's tokens in a row of log-probabilities; -1
    // for a SIL that there is not.
    Frames(Tokens tokens, std::vector<int> columns)
        : tokens_(tokens), columns_(std::move(columns)) {}

    // Scale a row and keep it; returns whether it is one in which only the blank is possible.
    bool add(const float* log_probs, const Options& options);

    std::size_t size() const { return scores_.size() / width(); }
    std::size_t width() const { return static_cast<std::size_t>(tokens_.count()); }
    std::size_t n_columns() const { return static_cast<std::size_t>(tokens_.n_columns()); }
    const double* data() const { return scores_.data(); }
    const double* last() const { return scores_.data() + scores_.size() - width(); }

private:
    Tokens tokens_;
    std::vector<int> columns_;
    std::vector<double> scores_;
};

// Immutable to its users; threads share it.
class Model {
public:
    Model(std::shared_ptr<const Vocabulary> vocabulary, Tokens tokens);

    const Vocabulary& vocabulary() const { return *vocabulary_; }
    std::shared_ptr<const Vocabulary> shared_vocabulary() const { return vocabulary_; }
    Tokens tokens() const { return tokens_; }

    std::shared_ptr<const LookAhead> look_ahead(const Options& options) const;
    // Exact scores of sentences given as words, in their order; those that do not fit into the
    // frames are left out.
    std::vector<NBestEntry> score(const std::vector<std::vector<WordId>>& sentences,
                                  const Frames& frames, const Options& options,
                                  const NGram& ngram) const;

private:
    double lm_score(const std::vector<WordId>& words, const Options& options,
                    const NGram& ngram) const;
    double word_mean(const std::vector<WordId>& words, const Options& options,
                     const NGram& ngram) const;

    std::shared_ptr<const Vocabulary> vocabulary_;
    Tokens tokens_;
    mutable std::mutex mutex_;
    mutable std::vector<std::shared_ptr<const LookAhead>> look_aheads_;  // of the last few options
};

// Frames go in, partial results and in the end the n-best list come out. The beam decides which
// sentences are found; their scores are computed again from all frames, so they do not depend on
// the beam or on how the frames were cut into chunks.
class Stream {
public:
    // The hypotheses that a hook sees: one for each context that is alive.
    struct Live {
        std::vector<std::uint32_t> ids, parent_ids;
        std::vector<std::vector<WordId>> words;
        std::vector<float> acoustic, lm, added;
    };

    // `second` (or null) is the n-gram that the lattice is rescored with. With a hook,
    // recombination also keys on the last `history_words` words, and scores may be added.
    Stream(std::shared_ptr<const Model> model, const Options& options, std::vector<int> columns,
           std::shared_ptr<const NGram> second, bool has_hook);
    Stream(const Stream&) = delete;  // the search refers to its own parts
    Stream& operator=(const Stream&) = delete;

    std::shared_ptr<const Model> model() const { return model_; }
    void set_options(const Options& options);
    // Take in frames of checked log-probabilities [n_frames, tokens].
    void advance(const float* log_probs, std::size_t n_frames);
    // The words that will not change any more, and the best guess after them.
    std::pair<std::vector<WordId>, std::vector<WordId>> partial();
    Live live();
    void add_scores(const std::vector<std::uint32_t>& ids, const float* scores);
    // The best sentences, best first; at least one. Ends the utterance.
    std::vector<NBestEntry> finish();

private:
    void end_lattice();
    static Span vicinity(const NBestEntry& found, std::size_t each);
    static void add_confidences(std::vector<NBestEntry>& hypotheses, const Lattice& lattice);
    std::vector<NBestEntry> fitting(const std::vector<std::vector<WordId>>& sentences,
                                    const NGram& ngram);
    std::vector<NBestEntry> ranked(const std::vector<std::vector<WordId>>& sentences);
    double added_score(const std::vector<WordId>& words);

    std::shared_ptr<const Model> model_;
    Options options_;
    std::shared_ptr<const NGram> second_;
    bool has_hook_;
    Frames frames_;
    Search search_;
    std::vector<float> row_;
};

}  // namespace cortext
