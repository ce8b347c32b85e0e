// What of the words so far matters to the words that follow: interned n-gram states, and what words
// score after them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flat_map.hpp"
#include "lexicon.hpp"

namespace cortext {

using ContextId = std::uint32_t;

// The contexts of one utterance, numbered as they come up, and the scores that were looked up for
// them. KenLM's states are minimal: they hold only the words that can still change a score, so
// histories of equal states can be joined.
class Contexts {
public:
    struct Context {
        NGramState state;
        ContextId parent;    // the context that it was first reached from, of a lower number
        std::uint32_t tail;  // the last history_words words, interned; 0 is none
        double added = 0.0;  // the scores added from outside to this context's hypotheses
    };
    struct Next {
        float log_prob = 0.0f;  // of the n-gram
        ContextId context = 0;
    };

    Contexts(std::shared_ptr<const Vocabulary> vocabulary, int history_words);

    static constexpr ContextId kBegin = 0;

    const Vocabulary& vocabulary() const { return *vocabulary_; }
    std::shared_ptr<const Vocabulary> shared_vocabulary() const { return vocabulary_; }
    std::size_t size() const { return contexts_.size(); }
    const Context& operator[](ContextId context) const { return contexts_[context]; }

    // Add to the scores of contexts, one score for each, and to what comes of them later: a context
    // that is not among them gets what the one before it gets. Returns what each context got.
    std::vector<double> add_scores(const std::vector<ContextId>& contexts, const float* scores);

    // What `word` scores after a context, and the context after it. A word ends after the same
    // context in many frames; the n-gram is asked once.
    Next next(ContextId context, WordId word) {
        bool is_new;
        Next& known = next_.at(pair_key(context, word), is_new);
        if (!is_new) return known;
        Next found = follow(context, word);
        known = found;
        return found;
    }

    double end(ContextId context) const {
        return vocabulary_->ngram().end(contexts_[context].state);
    }

private:
    Next follow(ContextId context, WordId word);
    ContextId intern(const NGramState& state, std::uint32_t tail, ContextId parent);
    std::uint32_t longer_tail(std::uint32_t tail, WordId word);

    std::shared_ptr<const Vocabulary> vocabulary_;
    int history_words_;
    std::vector<Context> contexts_;
    std::vector<ContextId> same_hash_;  // chains of contexts whose states have the same hash
    FlatMap<ContextId> by_hash_;
    FlatMap<Next> next_;
    std::vector<std::vector<WordId>> tails_;
    std::vector<std::uint32_t> same_tail_hash_;
    FlatMap<std::uint32_t> tail_by_hash_;
};

}  // namespace cortext
