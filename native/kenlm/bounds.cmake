# KenLM trusts the bodies of its binary files. These changes to our copy of its sources keep every lookup inside the
# tables whatever a damaged file says; ngram_check.cpp does the rest when a file is opened. Cost: two comparisons a lookup.

function(cortext_replace file old new)
    file(READ "${KENLM_DIRECTORY}/${file}" text)
    string(FIND "${text}" "${old}" found)
    if(found EQUAL -1)
        message(FATAL_ERROR "${file} of KenLM is not the expected version: it lacks\n${old}")
    endif()
    string(REPLACE "${old}" "${new}" text "${text}")
    file(WRITE "${KENLM_DIRECTORY}/${file}" "${text}")
endfunction()

set(changed "/* Changed for cortext, 2026: checked bounds. */")

# Children of a trie node: never beyond the next level, never backwards.
cortext_replace(lm/bhiksha.hh "      //assert(out.end >= out.begin);"
    "      ${changed}\n      out.Limit(max_next_);")
cortext_replace(lm/bhiksha.hh "      // If this fails, consider rebuilding your model using KenLM after 1e333d786b748555e8f368d2bbba29a016c98052
      assert(out.end >= out.begin);" "      ${changed}\n      out.Limit(max_next_);")
cortext_replace(lm/bhiksha.hh "    util::BitsMask next_;" "    util::BitsMask next_;\n    uint64_t max_next_;")
cortext_replace(lm/bhiksha.hh "    const util::BitsMask next_inline_;"
    "    const util::BitsMask next_inline_;\n    const uint64_t max_next_;")
cortext_replace(lm/bhiksha.cc "  next_(util::BitsMask::ByMax(max_next)) {}"
    "  next_(util::BitsMask::ByMax(max_next)), max_next_(max_next) {}")
cortext_replace(lm/bhiksha.cc "  : next_inline_(util::BitsMask::ByBits(InlineBits(max_offset, max_next, config))),"
    "  : next_inline_(util::BitsMask::ByBits(InlineBits(max_offset, max_next, config))), max_next_(max_next),")
cortext_replace(lm/trie.hh "  uint64_t begin, end;\n"
    "  uint64_t begin, end;
  ${changed}
  void Limit(uint64_t most) {
    if (end > most) end = most;
    if (begin > end) begin = end;
  }\n")

# The search among children: a pivot within the range even if the file's word numbers are not what they should be.
cortext_replace(util/sorted_uniform.hh "    return static_cast<std::size_t>((off * width) / (range + 1));"
    "    ${changed}
    const uint64_t ret = (off * width) / (range + 1);
    return static_cast<std::size_t>(ret < width ? ret : width - 1);")
