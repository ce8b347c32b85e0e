// Models of single words, which KenLM does not read as they are.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "error.hpp"
#include "ngram_check.hpp"
#include "text_lines.hpp"
#include "util/file.hh"

namespace cortext {

KenlmArpa::KenlmArpa(const std::string& path, std::size_t order) : path_(path) {
    if (order > 1) return;
    path_ = std::filesystem::temp_directory_path() / "cortext-XXXXXX";
    util::scoped_fd made(::mkstemp(path_.data()));
    if (made.get() < 0) throw ModelError("cannot write a temporary file", path_);
    copied_ = true;
    try {
        copy(path);
    } catch (const std::exception& error) {
        std::filesystem::remove(path_);
        rethrow_kenlm(error, path, false);
    }
}

void KenlmArpa::copy(const std::string& path) const {
    Lines lines(util::OpenReadOrThrow(path.c_str()));
    std::ofstream copy(path_);
    copy.exceptions(std::ios::badbit | std::ios::failbit);
    for (std::string line; lines.next(line); copy << line << '\n') {
        if (line.compare(0, 5, "\\end\\") == 0) copy << "\\2-grams:\n\n";
        if (line.compare(0, 6, "ngram ") != 0) continue;
        copy << line << '\n';
        line.assign(kNoPairs, sizeof(kNoPairs) - 2);
    }
    copy.close();
}

KenlmArpa::~KenlmArpa() {
    std::error_code ignored;
    if (copied_) std::filesystem::remove(path_, ignored);
}

}  // namespace cortext
