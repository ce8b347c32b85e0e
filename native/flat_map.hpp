// A hash map from 64-bit keys to small values: open addressing in one array, no erasure. It is at
// most half full, so a key is mostly found in the first slot, and without a pointer on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cortext {

inline std::uint64_t pair_key(std::uint32_t high, std::uint32_t low) {
    return (std::uint64_t{high} << 32) | low;
}

// Fibonacci hashing (Knuth): times 2^64 over the golden ratio. The product's high bits are mixed
// best, and the tables' masks take the low ones, so the high ones are folded down.
inline std::size_t hash_key(std::uint64_t key) {
    key *= 0x9E3779B97F4A7C15ull;
    return static_cast<std::size_t>(key ^ (key >> 29));
}

template <class Value>
class FlatMap {
public:
    explicit FlatMap(std::size_t capacity = 1024) : slots_(capacity) {}

    // The value of a key, made by default when it is new; valid until the next insertion.
    Value& at(std::uint64_t key, bool& is_new) {
        if (2 * (size_ + 1) > slots_.size()) grow();
        Slot& slot = slots_[place(key)];
        is_new = slot.key == kFree;
        if (is_new) {
            slot.key = key;
            ++size_;
        }
        return slot.value;
    }

    void clear() {
        slots_.assign(slots_.size(), Slot{});
        size_ = 0;
    }

private:
    static constexpr std::uint64_t kFree = ~std::uint64_t{0};  // no key

    struct Slot {
        std::uint64_t key = kFree;
        Value value{};
    };

    std::size_t place(std::uint64_t key) const {
        std::size_t mask = slots_.size() - 1;
        std::size_t at = hash_key(key) & mask;
        while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask;
        return at;
    }

    void grow() {
        std::vector<Slot> old(slots_.size() * 2);
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.key != kFree) slots_[place(slot.key)] = slot;
        }
    }

    std::vector<Slot> slots_;  // a power of two
    std::size_t size_ = 0;
};

}  // namespace cortext
