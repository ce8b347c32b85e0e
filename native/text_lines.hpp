// Plain or gzipped text, line by line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "util/read_compressed.hh"

namespace cortext {

// Reads plain or gzipped text line by line.
class Lines {
public:
    explicit Lines(int fd) : input_(fd), buffer_(1 << 16) {}

    // The next line without its end, or false at the end of the file; a longer one than fits comes
    // in pieces.
    bool next(std::string& line) {
        line.clear();
        while (line.size() < kLongest) {
            if (at_ == filled_ && !fill()) break;
            const auto* from = buffer_.data() + at_;
            const auto* newline = static_cast<const char*>(std::memchr(from, '\n', filled_ - at_));
            const std::size_t length =
                newline ? static_cast<std::size_t>(newline - from) : filled_ - at_;
            line.append(from, length);
            at_ += length + (newline != nullptr);
            if (newline) {
                ++number_;
                return true;
            }
        }
        number_ += !line.empty();
        return !line.empty();
    }

    // Bytes of text from here to the end. `zero`: where the first zero byte after here is, else the
    // end.
    std::uint64_t rest(std::uint64_t& zero) {
        std::uint64_t total = 0;
        zero = ~std::uint64_t{0};
        do {
            const void* found =
                filled_ > at_ ? std::memchr(buffer_.data() + at_, 0, filled_ - at_) : nullptr;
            if (found && zero == ~std::uint64_t{0}) {
                zero = before_ +
                       static_cast<std::uint64_t>(static_cast<const char*>(found) - buffer_.data());
            }
            total += filled_ - at_;
        } while (fill());
        return total;
    }

    // The number of the line that has byte `offset`.
    std::uint64_t line_of(std::uint64_t offset) {
        std::uint64_t line = 1;
        while (before_ + filled_ < offset && fill()) {
            const std::size_t length = std::min<std::uint64_t>(filled_, offset - before_);
            line += static_cast<std::uint64_t>(
                std::count(buffer_.data(), buffer_.data() + length, '\n'));
        }
        return line;
    }

    std::uint64_t number() const { return number_; }

private:
    static constexpr std::size_t kLongest = 1 << 20;

    bool fill() {
        before_ += filled_;
        at_ = 0;
        filled_ = input_.Read(buffer_.data(), buffer_.size());
        return filled_ > 0;
    }

    util::ReadCompressed input_;
    std::vector<char> buffer_;
    std::size_t at_ = 0, filled_ = 0;
    std::uint64_t before_ = 0, number_ = 0;  // bytes before the buffer; the last line's number
};

}  // namespace cortext
