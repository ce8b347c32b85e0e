// Back-off n-gram models: KenLM's binary files of every type, mapped into memory, and ARPA text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "lm/state.hh"

namespace lm::base {
class Model;
}

namespace cortext {

using WordIndex = std::uint32_t;      // of the model's vocabulary; 0 is <unk>
using NGramState = lm::ngram::State;  // what of the history can still matter

// An n-gram model; immutable, so that threads can share it. Scores are natural logs.
class NGram {
public:
    // A KenLM binary file of any type, or ARPA text, plain or gzipped. Throws ModelError.
    static std::shared_ptr<const NGram> open(const std::string& path);
    virtual ~NGram();
    NGram(const NGram&) = delete;
    NGram& operator=(const NGram&) = delete;

    int order() const { return static_cast<int>(counts_.size()); }
    const std::vector<std::uint64_t>& counts() const { return counts_; }  // n-grams of each order
    const std::string& kind() const { return kind_; }  // "probing", "trie", "quant_trie", ... or "arpa"
    const std::string& path() const { return path_; }
    std::uint64_t bytes() const { return bytes_; }  // of the file
    std::vector<std::string> words() const;         // by word index; throws ModelError if the file has no strings

    WordIndex index(std::string_view word) const;  // 0 if unknown
    NGramState begin() const;                      // after <s>
    NGramState empty() const;                      // without a context
    double score(const NGramState& in, WordIndex word, NGramState& out) const;  // log p(word | in)
    double end(const NGramState& in) const;                                     // log p(</s> | in)
    double unigram(WordIndex word) const;                                       // log p(word)

private:
    NGram(std::string path, std::string kind, std::uint64_t bytes);

    std::unique_ptr<lm::base::Model> model_;
    std::string path_, kind_;
    std::uint64_t bytes_;
    std::vector<std::uint64_t> counts_;
    std::vector<std::string> arpa_words_;  // of ARPA text only: it cannot be read twice as cheaply as a binary file
    WordIndex end_ = 0;
};

// Writes the ARPA file `arpa` as a KenLM binary file: type "trie" or "probing"; a trie's probabilities and back-offs
// quantised to so many bits (0: not), its pointers compressed with up to so many bits (0: not). Sorts in `memory_bytes`
// with temporary files in `temporary`. `out` appears when it is complete. Throws ModelError.
void write_binary(const std::string& arpa, const std::string& out, const std::string& type, int prob_bits,
                  int backoff_bits, int pointer_bits, std::uint64_t memory_bytes, const std::string& temporary);

}  // namespace cortext
