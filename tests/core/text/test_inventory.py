import numpy as np
import pytest

from cortext.data.conventions import Conventions
from cortext.errors import TextError
from cortext.text import CHARACTERS, HANDWRITING, LM, RELEASE, Inventory, get_inventory, to_tokens
from cortext.text.inventory import read_inventory


def test_both_published_orders_number_41_tokens_with_the_blank_first():
    assert len(RELEASE) == len(LM) == 41
    assert RELEASE.blank == LM.blank == 0
    assert (RELEASE.sil, LM.sil) == (40, 1)
    assert (RELEASE.symbols[1], RELEASE.symbols[39]) == ("AA", "ZH")
    assert (LM.symbols[2], LM.symbols[40]) == ("AA", "ZH")


def test_reordering_moves_the_silence_as_the_release_does():
    release_order = np.arange(41)
    np.testing.assert_array_equal(release_order[LM.order_from(RELEASE)], [0, 40, *range(1, 40)])
    np.testing.assert_array_equal(
        release_order[LM.order_from(RELEASE)][RELEASE.order_from(LM)], release_order
    )


def test_ids_and_names_undo_each_other():
    assert RELEASE.names(RELEASE.ids(["K", "AE", "T", "SIL"])) == ["K", "AE", "T", "SIL"]
    assert RELEASE.ids([]).dtype == np.int64


def test_unknown_symbols_and_names_suggest_the_nearest():
    with pytest.raises(TextError, match="unknown phoneme 'AEE'; did you mean 'AE'"):
        RELEASE.ids(["AEE"])
    with pytest.raises(TextError, match="unknown inventory 'releas'; did you mean 'release'"):
        get_inventory("releas")
    assert get_inventory("lm") is LM
    assert get_inventory(RELEASE) is RELEASE


def test_inventories_of_other_tokens_cannot_be_reordered():
    with pytest.raises(TextError, match="do not hold the same tokens"):
        RELEASE.order_from(Inventory("small", ("BLANK", "SIL")))


def test_the_handwriting_release_has_31_characters():
    assert len(HANDWRITING) == 32
    assert HANDWRITING.roles == {"blank": "BLANK", "boundary": ">"}
    assert CHARACTERS.symbols[CHARACTERS.sil] == "|"


@pytest.mark.parametrize("inventory", [RELEASE, LM, CHARACTERS, HANDWRITING])
def test_an_inventory_travels_as_plain_values(inventory):
    assert Inventory.from_json(inventory.to_json()) == inventory


def test_the_published_inventories_are_written_as_before():
    assert RELEASE.to_json() == {"name": "release", "symbols": list(RELEASE.symbols)}


def test_what_differs_is_named():
    small = Inventory("a", ("BLANK", "x", "y"), silence=None)
    assert small.difference(Inventory("b", ("BLANK", "x", "y"), silence=None)) is None
    assert (
        small.difference(Inventory("b", ("BLANK", "y", "x"), silence=None)) == "token 1 is x, not y"
    )
    assert (
        small.difference(Inventory("b", ("BLANK", "x", "y"), silence="y"))
        == "the silence is none, not y"
    )
    assert RELEASE.difference(LM) is None
    assert RELEASE.difference(LM, by_number=True) == "token 1 is AA, not SIL"
    assert Conventions(LM).difference(Conventions()) == "token 1 is SIL, not AA"
    assert CHARACTERS.difference(RELEASE) == "the tokens are characters, not phonemes"


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ("arpabe", "did you mean 'arpabet'"),
        ({"name": "x"}, "symbols"),
        ({"name": "x", "symbols": ["BLANK", "a", "a"], "roles": {}}, "'a' is there twice"),
        ({"name": "x", "symbols": ["a", "BLANK"], "roles": {"blank": "BLANK"}}, "first symbol"),
        ({"name": "x", "symbols": ["BLANK", "a b"], "roles": {}}, "no symbol"),
        ({"name": "x", "symbols": ["BLANK", "a"]}, "the silence 'SIL' is none of its symbols"),
        ({"name": "x", "symbols": ["BLANK"], "roles": {}}, "2 to 250"),
        ({"name": "x", "symbols": ["BLANK", *map(str, range(250))], "roles": {}}, "2 to 250"),
        ({"name": "x", "symbols": ["BLANK", "a"], "roles": {"word": "a"}}, "unknown role"),
        ({"name": "x", "symbols": ["BLANK", "e\u0301"], "roles": {}}, r'NFC.*; write "\\u00e9"'),
    ],
)
def test_what_is_no_inventory_is_refused(mapping, said):
    with pytest.raises(TextError, match=said):
        Inventory.from_json(mapping)


def test_labels_close_words_with_silence_and_part_them_with_a_boundary():
    words = [("a", "b"), ("c",)]
    assert RELEASE.closed(words) == ["a", "b", "SIL", "c", "SIL"]
    assert CHARACTERS.closed(words) == ["a", "b", "|", "c"]
    assert Inventory("n", ("BLANK", "a"), silence=None).closed(words) == ["a", "b", "c"]
    assert to_tokens("I can't", CHARACTERS) == ["i", "|", "c", "a", "n", "'", "t"]


def test_without_its_separator_an_inventory_has_one_spoken_token_more():
    inventory = CHARACTERS.without_separator
    assert inventory.symbols == CHARACTERS.symbols
    assert (inventory.separator, inventory.sil) == (None, None)
    assert inventory.spoken == CHARACTERS.symbols[1:]
    assert RELEASE.without_separator.spoken == RELEASE.symbols[1:]


def test_groups_hold_every_token_but_the_blank_and_the_separator_last():
    symbols = ("BLANK", "a", "|", "p", "e", "t")
    roles = {"blank": "BLANK", "boundary": "|"}
    mapping = {"name": "own", "symbols": symbols, "roles": roles, "groups": {"vowels": ["e", "a"]}}
    inventory = Inventory.from_json(mapping)
    assert inventory.grouped == (
        ("vowels", ("e", "a")),
        ("other phonemes", ("p", "t")),
        ("word boundary", ("|",)),
    )
    assert inventory.grouped_symbols == ("e", "a", "p", "t", "|")
    plain = Inventory("plain", ("BLANK", "a", "b"), silence=None, unit="character")
    assert plain.grouped == (("characters", ("a", "b")),)


def test_groups_travel_also_for_the_published_phonemes():
    shuffled = ["BLANK", *reversed(RELEASE.symbols[1:])]
    mapping = {"name": "shuffled", "symbols": shuffled}
    assert Inventory.from_json(mapping).grouped == RELEASE.grouped
    assert Inventory.from_json(mapping).to_json() == mapping
    for symbols in (shuffled, list(RELEASE.symbols)):
        mapping = {"name": "own", "symbols": symbols, "groups": {"nasals": ["M", "N", "NG"]}}
        inventory = Inventory.from_json(mapping)
        assert inventory.to_json() == mapping
        assert [len(members) for _, members in inventory.grouped] == [3, 36, 1]


def test_wrong_tokens_are_counted_under_the_name_of_their_unit():
    assert [each.error_rate for each in (RELEASE, LM)] == ["PER", "PER"]
    assert CHARACTERS.error_rate == "TER"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"name": "x", "symbols": ["BLANK"]}', "inventory 'x': it has 1 tokens; 2 to 250"),
        ('{"format": "cortext-conventions", "inventory": "arpabe"}', "did you mean 'arpabet'"),
        ("[]", "cannot read the inventory"),
    ],
)
def test_a_file_that_holds_no_inventory_is_named(tmp_path, content, said):
    (tmp_path / "own.json").write_text(content)
    with pytest.raises(TextError, match=f"own.json: .*{said}"):
        read_inventory(tmp_path / "own.json")
