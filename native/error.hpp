// The errors that a user can cause. The module turns them into the exceptions of cortext.errors.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace cortext {

// What is wrong, where (a file and line, a word, an option) and what to do about it. Becomes
// DecodingError.
class Error : public std::runtime_error {
public:
    explicit Error(std::string what, std::string where = "", std::string fix = "")
        : std::runtime_error(what), where_(std::move(where)), fix_(std::move(fix)) {}

    const std::string& where() const { return where_; }
    const std::string& fix() const { return fix_; }

private:
    std::string where_, fix_;
};

// A language-model file that cannot be used. Becomes LanguageModelError.
class ModelError : public Error {
public:
    using Error::Error;
};

}  // namespace cortext
