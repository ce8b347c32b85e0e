"""The grammar that writes half of the simulator's sentences, and how its file is read.

`text/grammar.txt` holds slots (lists of fillers that agree with one another) and templates grouped
into families:

    slot person: he him his             other forms of each filler, named
      my sister; she; her; her
    verbs chore                         forms s, ed, en, ing are made from the first word
      water the plants | feed the {pet}
    irregular                           base, past, past participle and, where it is odd, the form
    in -ing
      take took taken | forget forgot forgotten forgetting
    family requests
      Could you {chore} (before lunch|for me), please?
      {person} {chore.ed} because {person.he} had time.

`{slot}` draws a filler, `{slot.form}` another form of the same filler, `{slot2}` a different filler
of that slot, and `(a|b)` one of the parts. Which split a template belongs to follows from its place
alone: the templates of every family are dealt in turn by `SPLIT_CYCLE`, so that validation and test
each own about one in eight of every family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import numpy as np

SPLIT_CYCLE = ("lm", "lm", "lm", "val", "lm", "lm", "lm", "test")
"""Split of the templates of a family, in the file's order.

"lm" templates also write the training sentences.
"""

_REFERENCE = re.compile(r"\{([a-z]+(?:_[a-z]+)*)(\d?)(?:\.([a-z]+))?\}")
_CHOICE = re.compile(r"\(([^()]*)\)")
# `a` becomes `an` before a vowel that is spoken, not only spelled.
_ARTICLE = re.compile(r"\b([Aa]) (?=(?!one\b|once\b|us[eu]|uni|euro)[aeiou]|hour\b|honest)")
# stop -> stopped; only words of one syllable double their last letter.
_ENDS_DOUBLED = re.compile(r"([^aeiou]*|qu)[aeiou][bdgmnprt]")
_VOWELS = "aeiou"


@dataclass(frozen=True)
class Template:
    """One sentence with slots: `name` is `family.number`, `split` one of "lm", "val", "test"."""

    name: str
    family: str
    split: str
    text: str


@dataclass
class _Draw:
    """A filler that was drawn: its row, and the fillers inside it (shared by all its forms)."""

    row: int
    inner: dict[str, _Draw] = field(default_factory=dict)


@dataclass(frozen=True)
class Grammar:
    """Slots (per filler a text for every form; "" is the plain one) and templates."""

    slots: dict[str, list[dict[str, str]]]
    templates: tuple[Template, ...]


class Writer:
    """Writes sentences from a grammar, the same ones for the same generator and order of calls.

    The fillers of a slot are dealt like cards, each once before any comes again: text of a few
    thousand sentences then holds every filler, which leaves fewer words that a language model has
    never seen.
    """

    def __init__(self, grammar: Grammar, rng: np.random.Generator) -> None:
        self.grammar = grammar
        self._rng = rng
        self._decks: dict[str, list[int]] = {}

    def sentence(self, template: Template) -> str:
        """Expand a template once, with a capital letter, and `an` before a vowel."""
        text = " ".join(self._render(template.text, {}).split())
        text = _ARTICLE.sub(r"\1n ", text)
        return text[0].upper() + text[1:]

    def sentences(self, template: Template, n: int) -> list[str]:
        """Return up to `n` different expansions as drawn; fewer where a template has few."""
        written: dict[str, None] = {}
        for _ in range(3 * n):
            written[self.sentence(template)] = None
            if len(written) >= n:
                break
        return list(written)

    def _render(self, text: str, scope: dict[str, _Draw]) -> str:
        chosen = _CHOICE.sub(lambda match: self._pick(match[1].split("|")), text)
        return _REFERENCE.sub(
            lambda match: self._fill(match[1], match[2], match[3] or "", scope), chosen
        )

    def _fill(self, slot: str, digit: str, form: str, scope: dict[str, _Draw]) -> str:
        key = slot + digit
        if key not in scope:
            scope[key] = _Draw(
                self._deal(
                    slot,
                    {draw.row for name, draw in scope.items() if name.rstrip("23456789") == slot},
                )
            )
        draw = scope[key]
        return self._render(self.grammar.slots[slot][draw.row][form], draw.inner)

    def _deal(self, slot: str, taken: set[int]) -> int:
        while True:
            deck = self._decks.get(slot)
            if not deck:
                deck = self._decks[slot] = self._rng.permutation(
                    len(self.grammar.slots[slot])
                ).tolist()
            row = deck.pop()
            if row not in taken:
                return row

    def _pick(self, options: list[str]) -> str:
        return options[int(self._rng.integers(len(options)))]


@cache
def load() -> Grammar:
    """Load the grammar that ships with the package."""
    return parse(
        (resources.files(__package__) / "text" / "grammar.txt").read_text(encoding="ascii")
    )


def parse(text: str) -> Grammar:
    """Parse a grammar from the text of its file (see the module's docstring).

    Raises ValueError for a line it cannot use.
    """
    slots: dict[str, list[dict[str, str]]] = {}
    verbs: dict[str, list[str]] = {}
    irregular: dict[str, list[str]] = {}
    templates: list[Template] = []
    kind = name = ""
    forms: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            kind, _, rest = line.partition(" ")
            name, _, columns = (part.strip() for part in rest.partition(":"))
            forms = ["", *columns.split()]
            continue
        items = [item.strip() for item in line.split("|")] if kind != "family" else [line.strip()]
        if kind == "slot":
            slots.setdefault(name, []).extend(_row(item, forms) for item in items)
        elif kind == "verbs":
            verbs.setdefault(name, []).extend(items)
        elif kind == "irregular":
            irregular.update((item.split()[0], item.split()[1:]) for item in items)
        elif kind == "family":
            number = sum(template.family == name for template in templates)
            split = SPLIT_CYCLE[number % len(SPLIT_CYCLE)]
            templates.append(Template(f"{name}.{number:02d}", name, split, line.strip()))
        else:
            raise ValueError(
                f"grammar: line outside slot, verbs, irregular or family: {line.strip()!r}"
            )
    slots.update(
        (name, [inflect(phrase, irregular) for phrase in phrases])
        for name, phrases in verbs.items()
    )
    return Grammar(slots, tuple(templates))


def _row(item: str, forms: list[str]) -> dict[str, str]:
    texts = [text.strip() for text in item.split(";")]
    if len(texts) != len(forms):
        raise ValueError(f"grammar: {item!r} has {len(texts)} forms, expected {len(forms)}")
    return dict(zip(forms, texts, strict=True))


def inflect(phrase: str, irregular: dict[str, list[str]]) -> dict[str, str]:
    """Return the forms of a verb phrase.

    Plain, `s` (third person), `ed` (past), `en` (past participle), `ing`.
    """
    verb, _, rest = phrase.partition(" ")
    tail = f" {rest}" if rest else ""
    past, participle, *ing = irregular.get(verb, [_past(verb)] * 2)
    forms = {
        "": verb,
        "s": _third(verb),
        "ed": past,
        "en": participle,
        "ing": ing[0] if ing else _ing(verb),
    }
    return {form: word + tail for form, word in forms.items()}


def _third(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb[-1] == "y" and verb[-2] not in _VOWELS:
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb[-1] == "y" and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return verb + (verb[-1] if _ENDS_DOUBLED.fullmatch(verb) else "") + "ed"


def _ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return verb + (verb[-1] if _ENDS_DOUBLED.fullmatch(verb) else "") + "ing"
