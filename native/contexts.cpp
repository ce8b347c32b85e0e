#include "contexts.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace cortext {

namespace {

constexpr std::uint32_t kEndOfChain = 0xFFFFFFFFu;

std::uint64_t hash_words(const std::uint32_t* words, std::size_t n_words, std::uint64_t seed) {
    std::uint64_t hash = seed + n_words;
    for (std::size_t each = 0; each < n_words; ++each) hash = hash_key(hash ^ words[each]);
    return hash;
}

}  // namespace

Contexts::Contexts(std::shared_ptr<const Vocabulary> vocabulary, int history_words)
    : vocabulary_(std::move(vocabulary)), history_words_(history_words) {
    tails_.emplace_back();
    same_tail_hash_.push_back(kEndOfChain);
    intern(vocabulary_->ngram().begin(), 0, kBegin);
}

Contexts::Next Contexts::follow(ContextId context, WordId word) {
    NGramState state;
    double log_prob =
        vocabulary_->ngram().score(contexts_[context].state, vocabulary_->ngram_word(word), state);
    std::uint32_t tail = history_words_ ? longer_tail(contexts_[context].tail, word) : 0;
    return {static_cast<float>(log_prob), intern(state, tail, context)};
}

std::vector<double> Contexts::add_scores(const std::vector<ContextId>& contexts,
                                         const float* scores) {
    std::vector<const float*> own(contexts_.size(), nullptr);
    for (std::size_t each = 0; each < contexts.size(); ++each) {
        if (contexts[each] >= own.size()) {
            throw std::out_of_range("no hypothesis has the number " +
                                    std::to_string(contexts[each]));
        }
        own[contexts[each]] = scores + each;
    }
    // A parent has a lower number than its children, so one pass hands scores on.
    std::vector<double> got(contexts_.size(), 0.0);
    for (ContextId context = 0; context < contexts_.size(); ++context) {
        got[context] = own[context] ? double{*own[context]} : got[contexts_[context].parent];
        contexts_[context].added += got[context];
    }
    return got;
}

ContextId Contexts::intern(const NGramState& state, std::uint32_t tail, ContextId parent) {
    bool is_new;
    ContextId& first = by_hash_.at(hash_words(state.words, state.length, tail), is_new);
    if (is_new) first = kEndOfChain;
    for (ContextId known = first; known != kEndOfChain; known = same_hash_[known]) {
        const Context& other = contexts_[known];
        bool same = other.tail == tail && other.state.length == state.length &&
                    std::equal(state.words, state.words + state.length, other.state.words);
        if (same) return known;
    }
    auto number = static_cast<ContextId>(contexts_.size());
    same_hash_.push_back(first);
    first = number;
    contexts_.push_back({state, parent, tail, contexts_.empty() ? 0.0 : contexts_[parent].added});
    return number;
}

std::uint32_t Contexts::longer_tail(std::uint32_t tail, WordId word) {
    std::vector<WordId> words = tails_[tail];
    words.push_back(word);
    if (words.size() > static_cast<std::size_t>(history_words_)) words.erase(words.begin());
    bool is_new;
    std::uint32_t& first = tail_by_hash_.at(hash_words(words.data(), words.size(), 1), is_new);
    if (is_new) first = kEndOfChain;
    for (std::uint32_t known = first; known != kEndOfChain; known = same_tail_hash_[known]) {
        if (tails_[known] == words) return known;
    }
    auto number = static_cast<std::uint32_t>(tails_.size());
    same_tail_hash_.push_back(first);
    first = number;
    tails_.push_back(std::move(words));
    return number;
}

}  // namespace cortext
