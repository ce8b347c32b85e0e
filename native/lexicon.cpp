#include "lexicon.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "error.hpp"
#include "options.hpp"

namespace cortext {

namespace {
constexpr float kNever = -std::numeric_limits<float>::infinity();
}

// One pronunciation of a word.
struct Lexicon::Spoken {
    std::uint32_t first, length;
    WordId word;
    float log_weight;
};

Lexicon::Lexicon(const std::vector<Entry>& entries, const NGram& ngram, WordId first_word,
                 int n_tokens) {
    if (n_tokens < 1 || n_tokens > kMostPhonemes) throw Error("1 to 250 phonemes are possible");
    for (const Entry& entry : entries) store(entry, ngram, n_tokens);
    first_spoken_.push_back(static_cast<std::uint32_t>(token_ends_.size()));
    std::vector<Spoken> spoken;
    for (WordId word = 0; word < n_words(); ++word) {
        numbers_.emplace(text(word), word);
        for (std::uint32_t each = first_spoken_[word]; each < first_spoken_[word + 1]; ++each) {
            std::uint32_t first = each ? token_ends_[each - 1] : 0;
            spoken.push_back({first, token_ends_[each] - first, word, log_weights_[each]});
        }
    }
    build_tree(spoken, first_word, n_tokens <= kMostMasked);
}

void Lexicon::store(const Entry& entry, const NGram& ngram, int n_tokens) {
    if (entry.spelling.empty())
        throw Error{"the word '" + entry.word + "' has no pronunciation", "", ""};
    if (entry.spelling.size() > kMostPronunciations) {
        throw Error{"the word '" + entry.word + "' has more than 1,000 pronunciations", "", ""};
    }
    texts_ += entry.word;
    text_ends_.push_back(static_cast<std::uint32_t>(texts_.size()));
    ngram_words_.push_back(ngram.index(entry.word));
    unigrams_.push_back(static_cast<float>(ngram.unigram(ngram_words_.back())));
    first_spoken_.push_back(static_cast<std::uint32_t>(token_ends_.size()));
    for (const Pronunciation& pronunciation : entry.spelling) {
        bool known = std::all_of(pronunciation.tokens.begin(), pronunciation.tokens.end(),
                                 [&](std::uint8_t token) { return token < n_tokens; });
        if (!is_sound(pronunciation.log_weight)) {
            throw Error{"a weight of '" + entry.word + "' is not a number or beyond a million", "",
                        ""};
        }
        if (pronunciation.tokens.empty() || !known) {
            throw Error{
                "a pronunciation of '" + entry.word + "' is empty or has an unknown phoneme", "",
                ""};
        }
        tokens_.insert(tokens_.end(), pronunciation.tokens.begin(), pronunciation.tokens.end());
        token_ends_.push_back(static_cast<std::uint32_t>(tokens_.size()));
        log_weights_.push_back(static_cast<float>(pronunciation.log_weight));
    }
}

// Breadth first over the sorted pronunciations: a node is a range of them that agree up to its
// depth.
void Lexicon::build_tree(std::vector<Spoken>& spoken, WordId first_word, bool has_masks) {
    auto tokens_of = [this](const Spoken& each) {
        return std::string_view(reinterpret_cast<const char*>(tokens_.data()) + each.first,
                                each.length);
    };
    std::stable_sort(spoken.begin(), spoken.end(),
                     [&](const Spoken& a, const Spoken& b) { return tokens_of(a) < tokens_of(b); });
    struct Range {
        std::size_t first, end, depth;
    };
    std::vector<Range> ranges{{0, spoken.size(), 0}};
    phonemes_.push_back(0);
    for (std::size_t number = 0; number < ranges.size(); ++number) {
        Range range = ranges[number];
        std::size_t at = range.first;
        TreeNode node{0, static_cast<NodeId>(ranges.size()), 0,
                      static_cast<std::uint32_t>(tree_words_.size()), 0};
        for (; at < range.end && spoken[at].length == range.depth; ++at) {
            tree_words_.push_back({first_word + spoken[at].word, spoken[at].log_weight});
        }
        node.end_word = static_cast<std::uint32_t>(tree_words_.size());
        while (at < range.end) {
            auto phoneme = static_cast<std::uint8_t>(tokens_of(spoken[at])[range.depth]);
            std::size_t first = at;
            while (at < range.end &&
                   tokens_of(spoken[at])[range.depth] == static_cast<char>(phoneme))
                ++at;
            ranges.push_back({first, at, range.depth + 1});
            phonemes_.push_back(phoneme);
            if (has_masks) node.phonemes |= std::uint64_t{1} << phoneme;
        }
        node.end_child = static_cast<NodeId>(ranges.size());
        nodes_.push_back(node);
    }
}

WordId Lexicon::find(std::string_view word) const {
    auto found = numbers_.find(word);
    return found == numbers_.end() ? kNoWord : found->second;
}

std::string_view Lexicon::text(WordId word) const {
    std::uint32_t first = word ? text_ends_[word - 1] : 0;
    return std::string_view(texts_).substr(first, text_ends_[word] - first);
}

Spelling Lexicon::spelling(WordId word) const {
    Spelling spelling;
    for (std::uint32_t each = first_spoken_[word]; each < first_spoken_[word + 1]; ++each) {
        auto first = tokens_.begin() + (each ? token_ends_[each - 1] : 0);
        spelling.push_back({{first, tokens_.begin() + token_ends_[each]}, log_weights_[each]});
    }
    return spelling;
}

Vocabulary::Vocabulary(std::shared_ptr<const NGram> ngram, std::shared_ptr<const Lexicon> base,
                       const std::vector<Entry>& added, const std::vector<std::string>& removed,
                       const std::unordered_map<std::string, double>& bonuses, int n_tokens)
    : ngram_(std::move(ngram)),
      base_(std::move(base)),
      added_(std::make_shared<Lexicon>(added, *ngram_, static_cast<WordId>(base_->n_words()),
                                       n_tokens)),
      base_nodes_(base_->nodes().data()),
      base_phonemes_(base_->phonemes().data()),
      n_base_nodes_(static_cast<NodeId>(base_->nodes().size())) {
    auto silence = [this](const std::string& word) {
        WordId number = base_->find(word);
        if (number != kNoWord) bonuses_[number] = kNever;
    };
    for (const Entry& entry : added)
        silence(entry.word);  // an added word stands in the place of one of that name
    for (const std::string& word : removed) silence(word);
    for (const auto& [word, bonus] : bonuses) {
        WordId number = find(word);
        if (number == kNoWord)
            throw Error{"the word '" + word + "' is not in the lexicon", "", "add it first"};
        if (!is_sound(bonus))
            throw Error{"the bonus of '" + word + "' is not a number or beyond a million", "", ""};
        bonuses_[number] = static_cast<float>(bonus);
    }
}

WordId Vocabulary::find(std::string_view word) const {
    WordId number = added_->find(word);
    if (number != kNoWord) return number + static_cast<WordId>(base_->n_words());
    number = base_->find(word);
    return number != kNoWord && bonus(number) == kNever ? kNoWord : number;
}

float Vocabulary::bonus(WordId word) const {
    if (bonuses_.empty()) return 0.0f;
    auto found = bonuses_.find(word);
    return found == bonuses_.end() ? 0.0f : found->second;
}

LookAhead::LookAhead(const Vocabulary& vocabulary, const Weights& weights)
    : weights_(weights),
      ahead_(vocabulary.n_nodes(), kNever),
      bounds_(vocabulary.n_nodes(), kNever),
      highest_(kNever) {
    gains_.reserve(vocabulary.n_tree_words());
    for (std::uint32_t number = 0; number < vocabulary.n_tree_words(); ++number) {
        TreeWord word = vocabulary.tree_word(number);
        double gain = weights.word_score + weights.acoustic_scale * word.log_weight +
                      vocabulary.bonus(word.word);
        if (vocabulary.ngram_word(word.word) == 0) gain += weights.lm_weight * weights.unk_score;
        double expected = gain + weights.lm_weight * vocabulary.unigram(word.word);
        gains_.push_back({static_cast<float>(gain), static_cast<float>(expected)});
    }
    add_up(vocabulary);
}

void LookAhead::add_up(const Vocabulary& vocabulary) {
    // Backwards: children have higher numbers than their parents, so they are complete by then.
    for (auto number = static_cast<NodeId>(ahead_.size()); number-- > 0;) {
        TreeNode node = vocabulary.node(number);
        for (NodeId child = node.first_child; child < node.end_child; ++child) {
            ahead_[number] = std::max(ahead_[number], bounds_[child]);
        }
        bounds_[number] = ahead_[number];
        for (std::uint32_t word = node.first_word; word < node.end_word; ++word) {
            bounds_[number] = std::max(bounds_[number], expected(word));
        }
    }
    for (NodeId root : {NodeId{0}, vocabulary.added_root()}) {
        highest_ = std::max(highest_, ahead_[root]);
        ahead_[root] = 0.0f;
    }
    // Nodes whose words were all removed stay at -infinity, so that nothing enters them; leaves are
    // never entered.
    for (NodeId number = 0; number < ahead_.size(); ++number) {
        if (vocabulary.node(number).is_leaf()) ahead_[number] = 0.0f;
    }
}

}  // namespace cortext
