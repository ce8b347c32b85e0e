"""The simulator's sentences.

Counts, splits that share nothing, determinism, and text of one's own.
"""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

from cortext.errors import TextError
from cortext.text import Lexicon, normalize, pronounce
from cortext_data.simulate import grammar
from cortext_data.simulate.sentences import handwritten, read_sentences, splits

TINY = (40, 12, 6)
DEMO = (1300, 160, 100)
T15 = (8072, 1426, 1450)


def five_words(sentences):
    """Slow oracle, written apart from the product.

    Five-word strings, and whole sentences of fewer words.
    """
    found = set()
    for sentence in sentences:
        words = re.sub(r"[^a-z' -]", "", sentence.lower()).split()
        if len(words) < 5:
            found.add(" ".join(words))
        for first in range(len(words) - 4):
            found.add(" ".join(words[first : first + 5]))
    return found


# Every caller gets the same draw: nobody changes it.
drawn_once = functools.cache(splits)


@pytest.fixture(scope="module")
def demo():
    return drawn_once(*DEMO, 0)


def texts(sentences):
    return [sentence.text for sentence in sentences]


def test_the_text_is_large_and_varied(demo):
    written = texts(handwritten())
    assert len({normalize(text) for text in written}) == len(written) >= 3000
    assert len({word for text in written for word in normalize(text).split()}) >= 1500
    assert len({normalize(text) for text in demo.lm}) == len(demo.lm) >= 10_000


def test_the_grammar_gives_each_split_its_own_templates_in_every_large_family():
    templates = grammar.load().templates
    families = {template.family for template in templates}
    assert len(templates) >= 150
    assert len({template.text for template in templates}) == len(templates)
    assert len(families) >= 12
    for split in ("val", "test"):
        owned = [template for template in templates if template.split == split]
        assert 0.08 <= len(owned) / len(templates) <= 0.15
        assert {template.family for template in owned} == families


@pytest.mark.parametrize(("sizes", "seed"), [(TINY, 0), (TINY, 1), (DEMO, 0), (DEMO, 7), (T15, 3)])
def test_splits_share_no_five_words_and_no_template_and_have_the_asked_sizes(sizes, seed):
    drawn = drawn_once(*sizes, seed)
    assert (len(drawn.train), len(drawn.val), len(drawn.test)) == sizes
    held = five_words(texts(drawn.val + drawn.test))
    assert held.isdisjoint(five_words(texts(drawn.train)))
    assert held.isdisjoint(five_words(drawn.lm))
    assert not set(texts(drawn.val)) & set(texts(drawn.test))
    assert set(map(normalize, texts(drawn.train))) <= set(map(normalize, drawn.lm))

    split_of = {template.name: template.split for template in grammar.load().templates}
    for name, own in (("train", "lm"), ("val", "val"), ("test", "test")):
        assert {split_of[s.template] for s in getattr(drawn, name) if s.source == "grammar"} == {
            own
        }
        assert all(
            (s.template is None) == (s.source == "handwritten") for s in getattr(drawn, name)
        )


@pytest.mark.parametrize(("sizes", "seed"), [(TINY, 0), (DEMO, 0), (T15, 3)])
def test_half_of_validation_and_test_is_handwritten_and_no_sentence_comes_twice(sizes, seed):
    drawn = drawn_once(*sizes, seed)
    for split in (drawn.val, drawn.test):
        assert sum(s.source == "handwritten" for s in split) == len(split) // 2
    for split in (drawn.train, drawn.val, drawn.test):
        assert len({normalize(s.text) for s in split}) == len(split)


def test_the_odd_sentence_is_handwritten_and_empty_splits_are_allowed():
    drawn = splits(5, 3, 0, seed=0)
    assert [s.source for s in drawn.val].count("handwritten") == 2
    assert drawn.test == []


def test_a_split_repeats_its_own_sentences_only_beyond_what_exists():
    n = 8_000
    drawn = splits(10, n, 4, seed=0)
    assert len(drawn.val) == n
    n_distinct = len({s.text for s in drawn.val})
    assert len([s for s in set(drawn.val) if s.source == "handwritten"]) == int(
        0.2 * len(handwritten())
    )
    assert n_distinct < n
    assert five_words(texts(set(drawn.val))).isdisjoint(five_words(drawn.lm))
    assert len(drawn.train) == 10


def test_the_same_seed_draws_the_same_and_another_seed_other_sentences(demo):
    assert splits(*DEMO, seed=0) == demo
    other = drawn_once(*DEMO, 7)
    assert len(set(texts(other.val)) & set(texts(demo.val))) < len(demo.val) // 4


def test_handwritten_validation_is_drawn_evenly_from_all_files():
    """Five seeds of 320 draws.

    Every quarter of the text gives a quarter of them, within four standard errors.
    """
    written = [s.text for s in handwritten()]
    place = {text: i / len(written) for i, text in enumerate(written)}
    places = [
        place[s.text]
        for seed in range(5)
        for s in splits(4, 640, 4, seed).val
        if s.template is None
    ]
    share, _ = np.histogram(places, bins=4, range=(0, 1))
    assert np.all(np.abs(share / len(places) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(places)))


def test_only_plain_characters_and_well_formed_sentences(demo):
    for text in [*demo.lm, *texts(demo.val), *texts(demo.test)]:
        assert re.fullmatch(r"[A-Za-z][A-Za-z ,'-]*[A-Za-z'](?:[A-Za-z ,'.?!-]*)[.?!]", text), text
        assert "  " not in text
        assert text[0].isupper()
        assert not re.search(
            r" [.,?!]|\b(a|A) (?=[aeio])(?!one\b|once\b)|\ban (?=[bcdfgjklmnpqrstvwxyz])|\{|\}|\|",
            text,
        ), text


def test_every_word_has_a_pronunciation_and_nearly_all_are_in_the_dictionary(demo):
    words = {
        word
        for text in [*demo.lm, *texts(demo.val + demo.test)]
        for word in normalize(text).split()
    }
    lexicon = Lexicon.cmu()
    missing = sorted(word for word in words if word not in lexicon)
    assert all(len(pronunciation) > 0 for word in words for pronunciation in pronounce(word))
    assert len(missing) < 0.01 * len(words), missing


def test_every_verb_form_of_the_grammar_is_an_english_word():
    """A wrong inflection ("forgeted") is not in the dictionary.

    The few right ones that it lacks are listed.
    """
    forms = ("s", "ed", "en", "ing")
    verbs = [
        row for rows in grammar.load().slots.values() for row in rows if row.keys() == {"", *forms}
    ]
    words = {row[form].split()[0] for row in verbs for form in forms}
    lacking = {word for word in words if word not in Lexicon.cmu()}
    assert lacking <= set(
        (
            "buttoning calibrates calibrating fastens gossiped honked hummed insulates kneaded"
            " kneads mends pinches polishes restarts rewinding rewinds rewound rinsed rinses"
            " scrolled scrubs sews snored swabbed swabbing tickling tidied tidies tidying trembles"
            " unclogged unclogging unclogs undoes unpacks unplugging unplugs untangled untangles"
        ).split()
    )


@pytest.mark.parametrize(
    ("phrase", "third", "past", "participle", "ing"),
    [
        ("water the plants", "waters", "watered", "watered", "watering"),
        ("dry the plates", "dries", "dried", "dried", "drying"),
        ("play chess", "plays", "played", "played", "playing"),
        ("stop", "stops", "stopped", "stopped", "stopping"),
        ("clean the oven", "cleans", "cleaned", "cleaned", "cleaning"),
        ("lie still", "lies", "lay", "lain", "lying"),
        ("have a nap", "has", "had", "had", "having"),
        ("wash", "washes", "washed", "washed", "washing"),
        ("open a page", "opens", "opened", "opened", "opening"),
        ("write letters", "writes", "wrote", "written", "writing"),
        ("agree", "agrees", "agreed", "agreed", "agreeing"),
    ],
)
def test_verbs_are_inflected_as_in_english(phrase, third, past, participle, ing):
    irregular = {"lie": ["lay", "lain"], "have": ["had", "had"], "write": ["wrote", "written"]}
    forms = grammar.inflect(phrase, irregular)
    tail = phrase.partition(" ")[2]
    expected = {"": phrase.split()[0], "s": third, "ed": past, "en": participle, "ing": ing}
    assert forms == {form: f"{word} {tail}".strip() for form, word in expected.items()}


def test_slots_agree_within_a_sentence_and_numbered_slots_differ():
    small = grammar.parse(
        "slot pet: it\n  dog; him | cat; her\nverbs act\n  eat | see a {pet}\n"
        "irregular\n  eat ate eaten | see saw seen\n"
        "family one\n  my {pet} {act.ed} a (apple|orange), call {pet.it} and the {pet2}.\n"
    )
    (template,) = small.templates
    writer = grammar.Writer(small, np.random.default_rng(0))
    pattern = (
        r"My (dog|cat) (?:ate|saw a (?:dog|cat)) an (?:apple|orange), call (him|her) and the"
        r" (dog|cat)\."
    )
    for _ in range(50):
        pet, pronoun, other = re.fullmatch(pattern, writer.sentence(template)).groups()
        assert pronoun == {"dog": "him", "cat": "her"}[pet]
        assert other != pet


def test_every_filler_is_dealt_once_before_any_comes_again():
    small = grammar.parse("slot n\n  a | b | c | d | e\nfamily one\n  {n}.\n")
    writer = grammar.Writer(small, np.random.default_rng(1))
    for _ in range(4):
        assert {writer.sentence(small.templates[0]) for _ in range(5)} == {
            "A.",
            "B.",
            "C.",
            "D.",
            "E.",
        }


@pytest.mark.parametrize("text", ["slot a: b\n  only one form\n", "  a line of its own\n"])
def test_a_broken_grammar_is_refused(text):
    with pytest.raises(ValueError, match="grammar"):
        grammar.parse(text)


def test_text_of_ones_own_is_split_in_80_10_10_without_shared_sequences(tmp_path):
    lines = [
        f"{a} {b} {c} today"
        for a in ("red", "blue", "green", "pink")
        for b in ("cats", "dogs")
        for c in "uvwxy"
    ]
    shared = ["we all go down to the sea", "they all go down to the sea now"]
    path = tmp_path / "own.txt"
    path.write_text(
        "\n".join(["\ufeff" + lines[0], *lines[1:], "", "  ...  ", "---", "'", *shared]),
        encoding="utf-8",
    )
    sentences = read_sentences(path)
    assert sentences == [*lines, *shared]

    drawn = splits(100, 4, 9, seed=0, text=sentences)
    assert (len(drawn.train), len(drawn.val), len(drawn.test)) == (100, 4, 9)
    assert (len(set(drawn.val)), len(set(drawn.test))) == (4, 4)
    assert set(texts(drawn.train)) == set(drawn.lm)
    assert len(drawn.lm) in (33, 34)
    assert five_words(texts(drawn.val + drawn.test)).isdisjoint(five_words(drawn.lm))
    assert drawn == splits(100, 4, 9, seed=0, text=sentences)


def test_text_that_cannot_be_used_is_an_error_of_one_line(tmp_path):
    empty = tmp_path / "empty.txt"
    latin = tmp_path / "latin.txt"
    empty.write_text("\n 12 \n")
    latin.write_bytes("caf\xe9".encode("latin-1"))
    for path, what in (
        (empty, "no sentence"),
        (latin, "UTF-8"),
        (tmp_path / "none.txt", "No such file"),
    ):
        with pytest.raises(TextError, match=what) as caught:
            read_sentences(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    paragraph = tmp_path / "paragraph.txt"
    paragraph.write_text("a line\n" + "It went on and on. " * 30)
    with pytest.raises(
        TextError, match=r"paragraph\.txt: a line of 569 characters found \('It went on"
    ):
        read_sentences(paragraph)
    with pytest.raises(TextError, match="too few"):
        splits(1, 1, 1, seed=0, text=["one", "two"])


def test_the_documentation_shows_fifty_sentences_as_drawn():
    page = (Path(__file__).resolve().parents[3] / "docs/inside/fifty-sentences.md").read_text(
        encoding="utf-8"
    )
    shown = dict(
        re.findall(r"^\| (.+[.?!]) \| (hand-written|`[a-z_]+\.\d+`) \|$", page, flags=re.MULTILINE)
    )
    drawn = {
        s.text: f"`{s.template}`" if s.template else "hand-written"
        for s in splits(50, 0, 0, seed=0).train
    }
    assert shown == drawn
