// Words, their pronunciations, and the prefix tree of these: words that begin alike share their
// first phonemes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ngram.hpp"
#include "sentences.hpp"

namespace cortext {

using WordId =
    std::uint32_t;  // of a vocabulary: the lexicon's words first, then those that were added
using NodeId = std::uint32_t;

constexpr WordId kNoWord = 0xFFFFFFFFu;

struct Entry {
    std::string word;
    Spelling spelling;
};

struct TreeWord {
    WordId word;
    float log_weight;
};

// A byte numbers the phonemes, and the positions of a search after them.
constexpr int kMostPhonemes = 250;
// As many as a mask of 64 bits can hold. With more, the search tries a node's children one by one.
constexpr int kMostMasked = 64;

// A node of the tree. Its children lie side by side, in the order of their phonemes; so do the
// words that end in it. A node thus takes 24 bytes and no list of its own, and a child is found by
// counting bits, without a search.
struct TreeNode {
    std::uint64_t phonemes;  // of the children, one bit each; 0 beyond kMostMasked phonemes
    NodeId first_child;
    NodeId end_child;
    std::uint32_t first_word;
    std::uint32_t end_word;

    // The child by a phoneme of the mask.
    NodeId child(int phoneme) const {
        std::uint64_t before = phonemes & ((std::uint64_t{1} << phoneme) - 1);
        return first_child + static_cast<NodeId>(__builtin_popcountll(before));
    }
    bool is_leaf() const { return first_child == end_child; }
};

// Immutable. Node 0 is the root; children have higher numbers than their parents.
class Lexicon {
public:
    // Tokens are numbered below n_tokens; the words get the numbers from first_word on.
    Lexicon(const std::vector<Entry>& entries, const NGram& ngram, WordId first_word, int n_tokens);

    std::size_t n_words() const { return ngram_words_.size(); }
    WordId find(std::string_view word) const;  // number from 0, or kNoWord
    std::string_view text(WordId word) const;
    WordIndex ngram_word(WordId word) const { return ngram_words_[word]; }
    float unigram(WordId word) const { return unigrams_[word]; }
    Spelling spelling(WordId word) const;

    const std::vector<TreeNode>& nodes() const { return nodes_; }
    const std::vector<std::uint8_t>& phonemes() const { return phonemes_; }  // of the nodes
    const std::vector<TreeWord>& tree_words() const { return tree_words_; }

private:
    struct Spoken;
    void store(const Entry& entry, const NGram& ngram, int n_tokens);
    void build_tree(std::vector<Spoken>& spoken, WordId first_word, bool has_masks);

    std::string texts_;
    std::vector<std::uint32_t> text_ends_;
    std::vector<WordIndex> ngram_words_;
    std::vector<float> unigrams_;
    std::vector<std::uint32_t> first_spoken_;  // of each word, and the end
    std::vector<std::uint32_t> token_ends_;    // of each pronunciation
    std::vector<float> log_weights_;           // of each pronunciation
    std::vector<std::uint8_t> tokens_;
    std::vector<TreeNode> nodes_;
    std::vector<std::uint8_t> phonemes_;
    std::vector<TreeWord> tree_words_;
    std::unordered_map<std::string_view, WordId> numbers_;  // views into texts_
};

// What a search reads: a lexicon, a second small one of words that were added, and what each word's
// score is changed by. Immutable; streams keep the one that they began with.
class Vocabulary {
public:
    Vocabulary(std::shared_ptr<const NGram> ngram, std::shared_ptr<const Lexicon> base,
               const std::vector<Entry>& added, const std::vector<std::string>& removed,
               const std::unordered_map<std::string, double>& bonuses, int n_tokens);

    const NGram& ngram() const { return *ngram_; }
    std::shared_ptr<const NGram> shared_ngram() const { return ngram_; }
    std::shared_ptr<const Lexicon> base() const { return base_; }

    std::size_t n_nodes() const { return base_->nodes().size() + added_->nodes().size(); }
    NodeId added_root() const { return static_cast<NodeId>(base_->nodes().size()); }
    bool has_added() const { return added_->n_words() > 0; }

    WordId find(std::string_view word) const;  // kNoWord if it is unknown or removed
    std::string_view text(WordId word) const { return of(word).text(local(word)); }
    WordIndex ngram_word(WordId word) const { return of(word).ngram_word(local(word)); }
    float unigram(WordId word) const { return of(word).unigram(local(word)); }
    Spelling spelling(WordId word) const { return of(word).spelling(local(word)); }
    // Added to the score of a word; -infinity for one that was removed.
    float bonus(WordId word) const;

    // The tree of all words: the added ones' nodes and words are numbered after the lexicon's.
    TreeNode node(NodeId number) const {
        if (number < n_base_nodes_) return base_nodes_[number];
        TreeNode node = added_->nodes()[number - n_base_nodes_];
        node.first_child += n_base_nodes_;
        node.end_child += n_base_nodes_;
        node.first_word += static_cast<std::uint32_t>(base_->tree_words().size());
        node.end_word += static_cast<std::uint32_t>(base_->tree_words().size());
        return node;
    }
    std::uint8_t phoneme(NodeId number) const {
        return number < n_base_nodes_ ? base_phonemes_[number]
                                      : added_->phonemes()[number - n_base_nodes_];
    }
    TreeWord tree_word(std::uint32_t number) const {
        const std::vector<TreeWord>& words = base_->tree_words();
        return number < words.size() ? words[number] : added_->tree_words()[number - words.size()];
    }
    std::size_t n_tree_words() const {
        return base_->tree_words().size() + added_->tree_words().size();
    }

private:
    const Lexicon& of(WordId word) const { return word < base_->n_words() ? *base_ : *added_; }
    WordId local(WordId word) const {
        return word < base_->n_words() ? word : word - static_cast<WordId>(base_->n_words());
    }

    std::shared_ptr<const NGram> ngram_;
    std::shared_ptr<const Lexicon> base_, added_;
    const TreeNode* base_nodes_;
    const std::uint8_t* base_phonemes_;
    NodeId n_base_nodes_;
    std::unordered_map<WordId, float> bonuses_;
};

// What words add to a score, as far as that is known without their history.
class LookAhead {
public:
    struct Weights {
        double lm_weight, word_score, unk_score, acoustic_scale;
        bool operator==(const Weights& other) const {
            return lm_weight == other.lm_weight && word_score == other.word_score &&
                   unk_score == other.unk_score && acoustic_scale == other.acoustic_scale;
        }
    };

    LookAhead(const Vocabulary& vocabulary, const Weights& weights);

    const Weights& weights() const { return weights_; }
    // The best that the words strictly below a node add, by their unigrams; 0 for the roots.
    float operator[](NodeId node) const { return ahead_[node]; }
    // The most that entering a word can add, over both trees.
    float highest() const { return highest_; }
    // No less than what reaching a node can be worth: going on below it, or the words that end in
    // it.
    float bound(NodeId node) const { return bounds_[node]; }
    // What a word of the tree adds, without the n-gram, and with its unigram.
    float gain(std::uint32_t tree_word) const { return gains_[tree_word].without_lm; }
    float expected(std::uint32_t tree_word) const { return gains_[tree_word].with_unigram; }

private:
    struct Gain {
        float without_lm, with_unigram;
    };
    void add_up(const Vocabulary& vocabulary);

    Weights weights_;
    std::vector<Gain> gains_;
    std::vector<float> ahead_, bounds_;
    float highest_;
};

}  // namespace cortext
