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

// Reads the header and refuses what could make KenLM leave its tables, loop forever or ask for
// absurd memory: sizes and orders, words out of range, hash tables without an empty slot. Takes
// time by the vocabulary, not by the n-grams. Throws ModelError.
NGramFile check_ngram_file(const std::string& path);

// What KenLM said of `path` as one of our errors: without its source lines, with the line of an
// ARPA file. `inserted`: how many bytes more KenLM has read than the file has.
[[noreturn]] void rethrow_kenlm(const std::exception& error, const std::string& path, bool binary,
                                std::uint64_t inserted = 0);

// The ARPA file that KenLM reads: the given one, or, as KenLM wants pairs of words at least, a
// temporary copy of a file of single words with an empty section of pairs.
class KenlmArpa {
public:
    KenlmArpa(const std::string& path, std::size_t order);
    ~KenlmArpa();
    KenlmArpa(const KenlmArpa&) = delete;
    KenlmArpa& operator=(const KenlmArpa&) = delete;
    const char* path() const { return path_.c_str(); }
    std::uint64_t inserted() const { return copied_ ? sizeof(kNoPairs) - 1 : 0; }

private:
    void copy(const std::string& path) const;

    static constexpr char kNoPairs[] = "ngram 2=0\n";
    std::string path_;
    bool copied_ = false;
};

}  // namespace cortext
