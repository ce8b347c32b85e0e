// A hash map from 64-bit keys to small values: open addressing in one array, no erasure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cortext {

inline std::uint64_t pair_key(std::uint32_t high, std::uint32_t low) { return (std::uint64_t{high} << 32) | low; }

inline std::size_t hash_key(std::uint64_t key) {
    key *= 0x9E3779B97F4A7C15ull;
    return static_cast<std::size_t>(key ^ (key >> 29));
}

template <class Value>
class FlatMap {
public:
    explicit FlatMap(std::size_t capacity = 1024) : slots_(capacity) {}

    // The value of a key, or null.
    Value* find(std::uint64_t key) {
        Slot& slot = slots_[place(key)];
        return slot.used ? &slot.value : nullptr;
    }

    // The value of a key, made by default when it is new; valid until the next insertion.
    Value& at(std::uint64_t key, bool& is_new) {
        if (2 * (size_ + 1) > slots_.size()) grow();
        Slot& slot = slots_[place(key)];
        is_new = !slot.used;
        if (is_new) {
            slot.key = key;
            slot.used = true;
            ++size_;
        }
        return slot.value;
    }

    std::size_t size() const { return size_; }

    void clear() {
        slots_.assign(slots_.size(), Slot{});
        size_ = 0;
    }

private:
    struct Slot {
        std::uint64_t key = 0;
        Value value{};
        bool used = false;
    };

    std::size_t place(std::uint64_t key) const {
        std::size_t mask = slots_.size() - 1;
        std::size_t at = hash_key(key) & mask;
        while (slots_[at].used && slots_[at].key != key) at = (at + 1) & mask;
        return at;
    }

    void grow() {
        std::vector<Slot> old(slots_.size() * 2);
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.used) slots_[place(slot.key)] = slot;
        }
    }

    std::vector<Slot> slots_;  // a power of two
    std::size_t size_ = 0;
};

}  // namespace cortext
