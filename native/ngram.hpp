// Back-off n-gram models: KenLM's binary files of every type, mapped into memory, and ARPA text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "lm/state.hh"
#include "ngram_check.hpp"

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

    int order() const { return static_cast<int>(file_.counts.size()); }
    const std::vector<std::uint64_t>& counts() const {
        return file_.counts;
    }  // n-grams of each order
    const std::string& kind() const {
        return file_.kind;
    }  // "probing", "trie", "quant_trie", ... or "arpa"
    const std::string& path() const { return path_; }
    std::uint64_t bytes() const { return file_.bytes; }  // of the file
    std::vector<std::string> words()
        const;  // by word index; throws ModelError if the file has no strings

    WordIndex index(std::string_view word) const;                               // 0 if unknown
    NGramState begin() const;                                                   // after <s>
    NGramState empty() const;                                                   // without a context
    double score(const NGramState& in, WordIndex word, NGramState& out) const;  // log p(word | in)
    double end(const NGramState& in) const;                                     // log p(</s> | in)
    double unigram(WordIndex word) const;                                       // log p(word)

private:
    NGram(std::string path, NGramFile file);

    std::unique_ptr<lm::base::Model> model_;
    std::string path_;
    NGramFile file_;
    std::vector<std::string>
        arpa_words_;  // of ARPA text only: it cannot be read twice as cheaply as a binary file
    WordIndex end_ = 0;
};

// Writes the ARPA file `arpa` as a KenLM binary file of type "trie", "probing" or "rest_probing". A
// trie's probabilities and back-offs are quantised to 1 to 25 bits (0: neither is), its pointers
// compressed with up to so many bits (0: not). Sorts in `memory_bytes`, with temporary files in
// `temporary` (empty: beside `out`); the model itself comes on top. `out` appears when it is
// complete. Throws ModelError.
void write_binary(const std::string& arpa, const std::string& out, const std::string& type,
                  int prob_bits, int backoff_bits, int pointer_bits, std::uint64_t memory_bytes,
                  const std::string& temporary);

}  // namespace cortext
