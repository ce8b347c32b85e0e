// What must hold of an n-gram file before KenLM, which trusts it, may open it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cortext {

struct NGramFile {
    bool binary = false;
    std::string kind;                   // "probing", "rest_probing", "trie", ..., or "arpa"
    std::uint64_t bytes = 0;            // of the file
    std::vector<std::uint64_t> counts;  // n-grams of each order, as the header states them
};

// Reads the header and refuses what could make KenLM leave its tables, loop forever or ask for absurd memory: sizes and
// orders, words out of range, hash tables without an empty slot. Takes time by the vocabulary, not by the n-grams.
// Throws ModelError.
NGramFile check_ngram_file(const std::string& path);

// `what` KenLM said of `path` as one of our errors: without its source lines, with the line of an ARPA file.
[[noreturn]] void rethrow_kenlm(const std::exception& error, const std::string& path, bool binary);

}  // namespace cortext
