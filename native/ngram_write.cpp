// KenLM's own builder of binary files.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "lm/config.hh"
#include "lm/model.hh"
#include "ngram.hpp"
#include "util/exception.hh"

namespace cortext {
namespace {

// A file that is removed again unless it gets its name.
class Partial {
public:
    explicit Partial(const std::string& out)
        : path_(out + "." + std::to_string(::getpid()) + ".partial") {}
    ~Partial() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    const std::string& path() const { return path_; }
    void rename(const std::string& out) {
        std::error_code failed;
        std::filesystem::rename(path_, out, failed);
        if (failed) throw ModelError("cannot write it: " + failed.message(), out);
    }

private:
    std::string path_;
};

lm::ngram::ModelType model_type(const std::string& type, bool quantised, bool array) {
    if (type == "probing") return lm::ngram::PROBING;
    if (type == "rest_probing") return lm::ngram::REST_PROBING;
    if (type != "trie")
        throw ModelError("unknown type '" + type + "'", "", "known: trie, probing, rest_probing");
    if (quantised) return array ? lm::ngram::QUANT_ARRAY_TRIE : lm::ngram::QUANT_TRIE;
    return array ? lm::ngram::ARRAY_TRIE : lm::ngram::TRIE;
}

void build(const char* path, lm::ngram::ModelType type, const lm::ngram::Config& config) {
    using namespace lm::ngram;
    switch (type) {
        case PROBING: ProbingModel(path, config); break;
        case REST_PROBING: RestProbingModel(path, config); break;
        case TRIE: TrieModel(path, config); break;
        case QUANT_TRIE: QuantTrieModel(path, config); break;
        case ARRAY_TRIE: ArrayTrieModel(path, config); break;
        case QUANT_ARRAY_TRIE: QuantArrayTrieModel(path, config); break;
    }
}

int checked_bits(int bits, int most, const char* name) {
    if (bits < 0 || bits > most) {
        throw ModelError(std::string(name) + " is " + std::to_string(bits), "",
                         "0 (off) to " + std::to_string(most) + " is possible");
    }
    return bits;
}

}  // namespace

void write_binary(const std::string& arpa, const std::string& out, const std::string& type,
                  int prob_bits, int backoff_bits, int pointer_bits, std::uint64_t memory_bytes,
                  const std::string& temporary) {
    checked_bits(prob_bits, 25, "prob_bits");
    checked_bits(backoff_bits, 25, "backoff_bits");
    checked_bits(pointer_bits, 64, "pointer_bits");
    const bool quantised = prob_bits > 0 || backoff_bits > 0;
    if (quantised && (prob_bits == 0 || backoff_bits < 2)) {
        throw ModelError("prob_bits is " + std::to_string(prob_bits) + ", backoff_bits " +
                             std::to_string(backoff_bits),
                         "", "quantise both (from 1 and 2 bits) or neither");
    }
    const NGramFile file = check_ngram_file(arpa);
    if (file.binary) throw ModelError("already a KenLM binary", arpa, "give an ARPA file");
    Partial partial(out);
    lm::ngram::Config config;
    config.show_progress = false;
    config.messages = nullptr;
    config.unknown_missing = lm::SILENT;
    config.arpa_complain = lm::ngram::Config::NONE;
    config.write_mmap = partial.path().c_str();
    config.building_memory = memory_bytes;
    config.temporary_directory_prefix = temporary.empty() ? out : temporary + "/";
    config.prob_bits = static_cast<std::uint8_t>(prob_bits);
    config.backoff_bits = static_cast<std::uint8_t>(backoff_bits);
    config.pointer_bhiksha_bits = static_cast<std::uint8_t>(pointer_bits);
    const lm::ngram::ModelType binary_type = model_type(type, quantised, pointer_bits > 0);
    const KenlmArpa read(arpa, file.counts.size());
    try {
        build(read.path(), binary_type, config);
    } catch (const std::exception& error) {
        if (dynamic_cast<const util::ErrnoException*>(&error)) rethrow_kenlm(error, out, true);
        // Reading it whole names the line, which the builder of tries cannot.
        if (type == "trie" && std::string(error.what()).find(" Byte: ") == std::string::npos)
            NGram::open(arpa);
        rethrow_kenlm(error, arpa, false, read.inserted());
    }
    partial.rename(out);
}

}  // namespace cortext
