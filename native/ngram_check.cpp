#include "ngram_check.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "error.hpp"
#include "lm/config.hh"
#include "lm/max_order.hh"
#include "lm/model.hh"
#include "lm/quantize.hh"
#include "lm/value.hh"
#include "lm/vocab.hh"
#include "text_lines.hpp"
#include "util/exception.hh"
#include "util/file.hh"
#include "util/file_piece.hh"
#include "util/mmap.hh"
#include "util/probing_hash_table.hh"

namespace cortext {
namespace {

constexpr std::string_view kMagic = "mmap lm http://kheafield.com/code";
constexpr std::string_view kMagicVersion = "mmap lm http://kheafield.com/code format version 5\n";
constexpr std::size_t kSanityBytes = 88,
                      kFixedBytes = 20;  // the parts of a binary file's header before the counts
const char* const kKinds[] = {"probing",    "rest_probing", "trie",
                              "quant_trie", "array_trie",   "quant_array_trie"};
constexpr const char* kMakeAgain = "copy or make it again";

[[noreturn]] void damaged(const std::string& what, const std::string& path) {
    throw ModelError("damaged KenLM file: " + what, path, kMakeAgain);
}

template <class T>
T read_at(const std::uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

// A binary file in memory, with its header taken apart.
struct Binary {
    const std::string& path;
    const std::uint8_t* base;
    std::uint64_t bytes = 0;
    unsigned type = 0;
    float multiplier = 0.0f;
    std::vector<std::uint64_t> counts{};
    std::uint64_t at = 0;                 // where the section begins that is checked next
    std::uint64_t header = 0, words = 0;  // bytes of the header; words with <unk>
    lm::ngram::Config config{};

    // The next `size` bytes.
    const std::uint8_t* take(std::uint64_t size) {
        if (size > bytes - at) damaged("it is shorter than its header says", path);
        const std::uint8_t* section = base + at;
        at += size;
        return section;
    }
};

void check_header(Binary& file) {
    const std::uint8_t* fixed = file.base + kSanityBytes;
    const unsigned order = fixed[0];
    file.multiplier = read_at<float>(fixed + 4);
    file.type = read_at<std::uint32_t>(fixed + 8);
    if (file.type >= std::size(kKinds))
        damaged("unknown type " + std::to_string(file.type), file.path);
    if (fixed[12] > 1) damaged("its header makes no sense", file.path);
    if (order > KENLM_MAX_ORDER) {
        throw ModelError("order " + std::to_string(order) + " is above the highest supported, " +
                             std::to_string(KENLM_MAX_ORDER),
                         file.path, "build a lower order");
    }
    file.config.probing_multiplier = file.multiplier;
    if (order < 2) damaged("order " + std::to_string(order), file.path);
    if (!(file.multiplier >= 1.0f && file.multiplier <= 1000.0f))
        damaged("its header makes no sense", file.path);
    file.header = (kSanityBytes + kFixedBytes + 8 * order + 7) / 8 * 8;
    file.take(file.header);
    for (unsigned n = 0; n < order; ++n) {
        file.counts.push_back(read_at<std::uint64_t>(fixed + kFixedBytes + 8 * n));
        // An n-gram takes some bits at least; this also keeps the sizes below from overflowing.
        if (file.counts.back() > 8 * file.bytes)
            damaged("it is shorter than its header says", file.path);
    }
    if (file.counts[0] == 0 || file.counts[0] >= (std::uint64_t{1} << 32) - 2)
        damaged("no vocabulary", file.path);
}

// A hash table is searched until the word or an empty slot is found.
template <class Entry>
const std::uint8_t* check_table(Binary& file, const std::uint8_t* table, std::uint64_t bytes) {
    for (std::uint64_t slot = 0; slot < bytes / sizeof(Entry); ++slot) {
        if (read_at<std::uint64_t>(table + slot * sizeof(Entry)) == 0) return table;
    }
    damaged("a hash table without an empty slot", file.path);
}

template <class Value>
void check_probing(Binary& file) {
    using Middle = util::ProbingHashTable<typename Value::ProbingEntry, util::IdentityHash>;
    using Longest = util::ProbingHashTable<lm::ngram::detail::ProbEntry, util::IdentityHash>;
    using Word = lm::ngram::ProbingVocabularyEntry;
    const std::uint64_t vocabulary =
        lm::ngram::ProbingVocabulary::Size(file.counts[0], file.multiplier);
    const std::uint8_t* words = file.take(vocabulary);
    const std::uint32_t bound = read_at<std::uint32_t>(words + 4);
    if (bound == 0 || bound > file.counts[0] + 1) damaged("word numbers out of range", file.path);
    file.words = bound;
    check_table<Word>(file, words + 8, vocabulary);
    for (std::uint64_t slot = 0; slot < (vocabulary - 8) / sizeof(Word); ++slot) {
        const auto word = read_at<Word>(words + 8 + slot * sizeof(Word));
        if (word.key != 0 && word.value >= bound) damaged("word numbers out of range", file.path);
    }
    file.take((file.counts[0] + 1) * sizeof(typename Value::Weights));
    for (std::size_t n = 1; n + 1 < file.counts.size(); ++n) {
        const std::uint64_t size = Middle::Size(file.counts[n], file.multiplier);
        check_table<typename Middle::Entry>(file, file.take(size), size);
    }
    const std::uint64_t size = Longest::Size(file.counts.back(), file.multiplier);
    check_table<typename Longest::Entry>(file, file.take(size), size);
}

void check_quantisation(Binary& file) {
    if (file.bytes - file.at < 8) damaged("it is shorter than its header says", file.path);
    const std::uint8_t* bits = file.take(0);
    if (bits[0] != 2) damaged("unknown version of quantisation", file.path);
    file.config.prob_bits = bits[1];
    file.config.backoff_bits = bits[2];
    if (bits[1] < 1 || bits[1] > 25 || bits[2] < 1 || bits[2] > 25)
        damaged("bits out of range", file.path);
    file.take(lm::ngram::SeparatelyQuantize::Size(static_cast<std::uint8_t>(file.counts.size()),
                                                  file.config));
}

// Levels from the bigrams on need no check: KenLM as built here stays within them.
void check_trie(Binary& file, bool quantised, bool array) {
    const std::uint8_t* vocabulary = file.take(8 + 8 * file.counts[0]);
    const std::uint64_t words = read_at<std::uint64_t>(vocabulary);
    if (words > file.counts[0]) damaged("word numbers out of range", file.path);
    file.words = words + 1;
    if (quantised) check_quantisation(file);
    constexpr std::uint64_t kUnigramBytes = 16, kNext = 8;
    const std::uint8_t* unigrams = file.take((file.counts[0] + 2) * kUnigramBytes);
    std::uint64_t begin = read_at<std::uint64_t>(unigrams + kNext);
    for (std::uint64_t word = 0; word <= words; ++word) {
        const auto end = read_at<std::uint64_t>(unigrams + (word + 1) * kUnigramBytes + kNext);
        if (end < begin || end > file.counts[1])
            damaged("word " + std::to_string(word) + " has no place", file.path);
        begin = end;
    }
    if (array && file.counts.size() > 2) {
        if (file.bytes - file.at < 2) damaged("it is shorter than its header says", file.path);
        file.config.pointer_bhiksha_bits = file.take(0)[1];
    }
}

std::uint64_t model_bytes(const Binary& file) {
    using namespace lm::ngram;
    switch (static_cast<ModelType>(file.type)) {
        case PROBING: return ProbingModel::Size(file.counts, file.config);
        case REST_PROBING: return RestProbingModel::Size(file.counts, file.config);
        case TRIE: return TrieModel::Size(file.counts, file.config);
        case QUANT_TRIE: return QuantTrieModel::Size(file.counts, file.config);
        case ARRAY_TRIE: return ArrayTrieModel::Size(file.counts, file.config);
        default: return QuantArrayTrieModel::Size(file.counts, file.config);
    }
}

// After the tables come the words, each closed by a zero.
void check_strings(Binary& file) {
    const std::uint64_t end = file.header + model_bytes(file);
    if (end > file.bytes) damaged("it is shorter than its header says", file.path);
    const bool has_strings = file.base[kSanityBytes + 12] != 0;
    if (has_strings && std::count(file.base + end, file.base + file.bytes, 0) !=
                           static_cast<std::int64_t>(file.words)) {
        damaged("not all of its words are at its end", file.path);
    }
}

void check_binary(const std::string& path, int fd, NGramFile& result) {
    if (result.bytes < kSanityBytes + kFixedBytes + 8 * KENLM_MAX_ORDER)
        damaged("it is truncated", path);
    util::scoped_memory memory;
    util::MapRead(util::LAZY, fd, 0, result.bytes, memory);
    Binary file{path, static_cast<const std::uint8_t*>(memory.get()), result.bytes};
    if (std::memcmp(file.base, kMagicVersion.data(), kMagicVersion.size()) != 0) {
        throw ModelError("a KenLM file that is unfinished or of another version", path, kMakeAgain);
    }
    check_header(file);
    if (file.type == 0) check_probing<lm::ngram::BackoffValue>(file);
    if (file.type == 1) check_probing<lm::ngram::RestValue>(file);
    if (file.type >= 2) check_trie(file, file.type == 3 || file.type == 5, file.type >= 4);
    check_strings(file);
    result.kind = kKinds[file.type];
    result.counts = std::move(file.counts);
    if (result.counts.size() == 2 && result.counts[1] == 0)
        result.counts.pop_back();  // see KenlmArpa
}

std::string trimmed(const std::string& line) {
    const auto first = line.find_first_not_of(" \t\r\n\v\f");
    if (first == std::string::npos) return "";
    return line.substr(first, line.find_last_not_of(" \t\r\n\v\f") + 1 - first);
}

// The counts of an ARPA file, each no more than fit into the file: memory is asked for by them.
void check_arpa(const std::string& path, int fd, NGramFile& result) {
    Lines lines(util::DupOrThrow(fd));
    std::string line;
    const auto fail = [&](const std::string& what, const char* fix = "make the file again") {
        throw ModelError(what, path + ", line " + std::to_string(lines.number()), fix);
    };
    do {
        if (!lines.next(line))
            fail("no \\data\\ section", "a KenLM binary or an ARPA file is needed");
        if (line.find('\0') != std::string::npos) {
            fail("neither text nor a KenLM binary", "a KenLM binary or an ARPA file is needed");
        }
        line = trimmed(line);
    } while (line.empty() || line[0] == '#');
    if (line != "\\data\\") {
        fail("found '" + line.substr(0, 40) + "' where \\data\\ is expected",
             "a KenLM binary or an ARPA file is needed");
    }
    while (lines.next(line) && !(line = trimmed(line)).empty()) {
        unsigned order = 0;
        unsigned long long count = 0;
        if (line.size() > 80 || std::sscanf(line.c_str(), "ngram %u=%llu", &order, &count) != 2) {
            fail("found '" + line.substr(0, 40) +
                 "' where 'ngram ORDER=COUNT' or an empty line is expected");
        }
        if (order != result.counts.size() + 1) {
            fail("found the count of order " + std::to_string(order) + " where order " +
                 std::to_string(result.counts.size() + 1) + " is expected");
        }
        if (order > KENLM_MAX_ORDER) {
            fail("order " + std::to_string(order) + " is above the highest supported, " +
                     std::to_string(KENLM_MAX_ORDER),
                 "build a lower order");
        }
        result.counts.push_back(count);
    }
    if (result.counts.empty()) fail("no 'ngram 1=COUNT' line after \\data\\");
    std::uint64_t zero;
    const std::uint64_t remaining = lines.rest(zero);
    if (zero != ~std::uint64_t{0}) {
        const std::uint64_t line_number = Lines(util::OpenReadOrThrow(path.c_str())).line_of(zero);
        throw ModelError("a zero byte, which is no text",
                         path + ", line " + std::to_string(line_number), kMakeAgain);
    }
    for (std::size_t n = 0; n < result.counts.size(); ++n) {
        // "0\ta b\n": the shortest line of a bigram
        if (result.counts[n] > remaining / (2 * n + 4)) {
            fail("the header counts " + std::to_string(result.counts[n]) + " " +
                     std::to_string(n + 1) + "-grams, more than the file has room for",
                 kMakeAgain);
        }
    }
    if (result.counts[0] == 0 || result.counts[0] >= (std::uint64_t{1} << 32) - 2)
        fail("no vocabulary");
    result.kind = "arpa";
}

// What KenLM says first is where in its sources it was said.
std::string without_source_lines(std::string what) {
    const auto end = what.find(".\n");
    return end == std::string::npos || what.find(" threw ") > end ? what : what.substr(end + 2);
}

}  // namespace

NGramFile check_ngram_file(const std::string& path) {
    NGramFile result;
    std::error_code failed;
    const auto kind = std::filesystem::status(path, failed).type();
    // Opening a pipe would wait for somebody who writes to it, and a device may have no end.
    if (std::filesystem::exists(std::filesystem::file_status(kind)) &&
        kind != std::filesystem::file_type::regular &&
        kind != std::filesystem::file_type::directory) {
        throw ModelError("not a file", path);
    }
    result.bytes = std::filesystem::file_size(path, failed);
    if (failed) throw ModelError("cannot read it: " + failed.message(), path);
    try {
        util::scoped_fd fd(util::OpenReadOrThrow(path.c_str()));
        char start[kMagic.size()] = {};
        if (result.bytes >= sizeof(start)) util::ErsatzPRead(fd.get(), start, sizeof(start), 0);
        result.binary = std::string_view(start, sizeof(start)) == kMagic;
        (result.binary ? check_binary : check_arpa)(path, fd.get(), result);
    } catch (const util::Exception& error) {
        rethrow_kenlm(error, path, result.binary);
    }
    return result;
}

void rethrow_kenlm(const std::exception& error, const std::string& path, bool binary,
                   std::uint64_t inserted) {
    if (dynamic_cast<const std::bad_alloc*>(&error))
        throw ModelError("not enough memory for it", path);
    if (dynamic_cast<const util::CompressedException*>(&error)) {
        if (std::strstr(error.what(), "not compiled in")) {
            throw ModelError("a kind of compression that is not read here", path, "decompress it");
        }
        throw ModelError("the compressed file is truncated or damaged", path, kMakeAgain);
    }
    std::string what = without_source_lines(error.what()), where = path;
    const auto byte = what.rfind(" Byte: ");
    if (!binary && byte != std::string::npos) {
        // KenLM stands behind what it has read, and before a number that is none.
        const bool before = dynamic_cast<const util::ParseNumberException*>(&error) != nullptr;
        const std::uint64_t at_byte = std::strtoull(what.c_str() + byte + 7, nullptr, 10);
        const std::uint64_t offset = at_byte - std::min(at_byte, inserted);
        try {
            Lines lines(util::OpenReadOrThrow(path.c_str()));
            where += ", line " +
                     std::to_string(lines.line_of(before || offset == 0 ? offset : offset - 1));
        } catch (const util::Exception&) {  // the compressed file ends here; the line stays unknown
        }
        what.erase(byte);
        const auto at = what.rfind(" at byte ");
        if (at != std::string::npos) what.erase(at);
    }
    if (what.size() > 300) what = what.substr(0, 300) + "...";
    const bool of_system = dynamic_cast<const util::ErrnoException*>(&error) != nullptr;
    throw ModelError(what, where, of_system ? "" : "make the file again");
}

}  // namespace cortext
