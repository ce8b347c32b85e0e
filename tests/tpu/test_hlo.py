"""Programs as text, with what they cost worked out by hand."""

import pytest

from cortext_tpu.cost import Exchange, count
from cortext_tpu.hlo import HloArray, parse, trip_count

NESTED = """HloModule jit_f, is_scheduled=true

FileNames
1 "a.py"

%inner (p: (s32[], f32[4,16], f32[16,32])) -> (s32[], f32[4,16], f32[16,32]) {
  %p = (s32[], f32[4,16]{1,0}, /*index=2*/f32[16,32]{1,0}) parameter(0)
  %x = f32[4,16]{1,0} get-tuple-element(%p), index=1
  %w = f32[16,32]{1,0} get-tuple-element(%p), index=2
  %dot.1 = f32[4,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[4,16]{1,0}, f32[16,32]{1,0}) tuple(%x, %x, %w)
}

%ends (p.1: (s32[], f32[4,16], f32[16,32])) -> pred[] {
  ROOT %p.1 = (s32[], f32[4,16]{1,0}, f32[16,32]{1,0}) parameter(0)
}

%outer (p.2: (s32[], f32[4,16], f32[16,32])) -> (s32[], f32[4,16], f32[16,32]) {
  %p.2 = (s32[], f32[4,16]{1,0}, f32[16,32]{1,0}) parameter(0)
  ROOT %while.1 = (s32[], f32[4,16]{1,0}, f32[16,32]{1,0}) while(%p.2), condition=%ends, body=%inner, metadata={op_name="jit(f)/while/body/while"}, backend_config={"known_init_step":{"init":"0","step":"1"},"known_trip_count":{"n":"5"}}
}

ENTRY %main (a: f32[4,16], b: f32[16,32]) -> (s32[], f32[4,16], f32[16,32]) {
  %a = f32[4,16]{1,0} parameter(0)
  %b = f32[16,32]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4,16]{1,0}, f32[16,32]{1,0}) tuple(%zero, %a, %b)
  %dot.2 = f32[4,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %while.2 = (s32[], f32[4,16]{1,0}, f32[16,32]{1,0}) while(%start), condition=%ends, body=%outer, metadata={op_name="jit(f)/while"}, backend_config={"known_trip_count":{"n":"7"}}
}
"""


def test_a_loop_in_a_loop_counts_as_often_as_it_runs() -> None:
    cost = count(parse(NESTED))
    once = 2 * 4 * 16 * 32
    assert cost.flops == {"f32": once + 7 * 5 * once}
    assert [(loop.trips, loop.entered, loop.flops) for loop in cost.loops] == [
        (7, 1, 35 * once),
        (5, 7, 35 * once),
    ]
    assert cost.iterations == 7 + 35


def test_the_memory_traffic_of_a_loop_counts_as_often_as_it_runs() -> None:
    # Two operands are read, one result is written, four bytes each.
    once = 4 * (4 * 16 + 16 * 32 + 4 * 32)
    assert count(parse(NESTED)).hbm_bytes == once + 7 * 5 * once


def tpu_loop(
    condition: str, step: str = "constant(1)", first: str = "constant(0)", change: str = "add"
) -> str:
    """A loop as the TPU's compiler writes it: without a word about how often it runs."""
    return f"""HloModule jit_f
%less (p0: s32[], p1: s32[]) -> pred[] {{
  %p0 = s32[]{{:T(128)}} parameter(0)
  %p1 = s32[]{{:T(128)}} parameter(1)
  ROOT %lt = pred[]{{:T(512)}} compare(%p0, %p1), direction=LT
}}

%body (p: (s32[], s32[])) -> (s32[], s32[]) {{
  %step = s32[]{{:T(128)}} {step}
  %p = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%p), index=0
  %bound = s32[]{{:T(128)}} get-tuple-element(%p), index=1
  %next = s32[]{{:T(128)}} {change}(%i, %step)
  ROOT %t = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) tuple(%next, %bound)
}}

%condition (q: (s32[], s32[])) -> pred[] {{
  %q = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) parameter(0)
  %j = s32[]{{:T(128)}} get-tuple-element(%q), index=0
  %limit = s32[]{{:T(128)}} get-tuple-element(%q), index=1
  %ten = s32[]{{:T(128)}} constant(10)
  ROOT %going = pred[]{{:T(512)}} {condition}
}}

ENTRY %main (n: s32[]) -> (s32[], s32[]) {{
  %n = s32[]{{:T(128)}} parameter(0)
  %first = s32[]{{:T(128)}} {first}
  %twelve = s32[]{{:T(128)}} constant(12)
  %start = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) tuple(%first, %twelve)
  ROOT %while = (s32[]{{:T(128)}}, s32[]{{:T(128)}}) while(%start), condition=%condition, body=%body
}}
"""


@pytest.mark.parametrize(
    ("text", "trips"),
    [
        (tpu_loop("compare(%j, %ten), direction=LT"), 10),
        (tpu_loop("compare(%j, %ten), direction=LE"), 11),
        (tpu_loop("compare(%j, %ten), direction=LT", step="constant(3)"), 4),
        # The bound comes with the tuple.
        (
            tpu_loop("fusion(%j, %limit), kind=kLoop, calls=%less"),
            12,
        ),
        (
            tpu_loop("compare(%j, %ten), direction=NE", first="constant(20)", step="constant(-1)"),
            10,
        ),
        (tpu_loop("compare(%j, %ten), direction=GT", first="constant(14)", change="subtract"), 4),
        (tpu_loop("compare(%j, %ten), direction=LT", first="constant(10)"), 0),
        # Begins with what the program is given.
        (
            tpu_loop("compare(%j, %ten), direction=LT", first="copy(%n)"),
            None,
        ),
        (tpu_loop("compare(%j, %ten), direction=LT", step="parameter(7)"), None),
        (tpu_loop("compare(%j, %ten), direction=GE", first="constant(10)"), None),  # has no end
    ],
)
def test_how_often_a_loop_runs_is_worked_out(
    text: str, trips: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortext_tpu.hlo.MOST_TRIPS", 1000)
    program = parse(text)
    loop = program.entry.instructions["while"]
    assert trip_count(program, program.entry, loop) == trips


def test_a_loop_without_a_known_end_is_counted_once_and_named() -> None:
    cost = count(parse(tpu_loop("compare(%j, %ten), direction=LT", first="copy(%n)")))
    assert [(loop.name, loop.trips) for loop in cost.loops] == [("while", None)]
    assert cost.iterations == 1


def convolution(result: str, left: str, right: str, rest: str) -> str:
    return f"""HloModule jit_f
%fused (a: {left}, b: {right}) -> {result} {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %convolution = {result} convolution(%a, %b), {rest}
}}

ENTRY %main (a: {left}, b: {right}) -> {result} {{
  %a.1 = {left}{{2,1,0:T(8,128)(2,1)}} parameter(0)
  %b.1 = {right}{{2,1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %fusion = {result}{{2,1,0:T(8,128)}} fusion(%a.1, %b.1), kind=kOutput, calls=%fused
}}
"""


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        # The TPU's compiler writes a product of 8 trials [900, 512] with 8 matrices [512, 512] as a
        # convolution with holes.
        (
            convolution(
                "f32[8,900,512]",
                "bf16[8,900,512]",
                "bf16[8,512,512]",
                "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
            ),
            2 * 8 * 900 * 512 * 512,
        ),
        # The gradient of a weight [64, 32] over 22 steps of 8 trials.
        (
            convolution(
                "f32[64,32,1]",
                "bf16[22,8,64]",
                "bf16[22,8,32]",
                "window={size=22}, dim_labels=0fb_0io->bf0",
            ),
            2 * 22 * 8 * 64 * 32,
        ),
        (
            convolution("f32[8,64]", "bf16[8,32]", "bf16[64,32]", "dim_labels=bf_oi->bf"),
            2 * 8 * 32 * 64,
        ),
        # Smoothing 10 bins of 6 features, each alone, with 3 points and padding: 2 of 30 points
        # meet padding.
        (
            convolution(
                "f32[4,6,10]",
                "f32[4,6,10]",
                "f32[6,1,3]",
                "window={size=3 pad=1_1}, dim_labels=bf0_oi0->bf0, feature_group_count=6",
            ),
            2 * 28 * 6 * 4,
        ),
        # Two axes, the second with a stride and holes in the kernel: 3 x (4 outputs of 2 taps, all
        # inside).
        (
            convolution(
                "f32[1,1,3,4]",
                "f32[1,1,3,9]",
                "f32[1,1,1,2]",
                "window={size=1x2 stride=1x2 pad=0_0x0_0 rhs_dilate=1x2},"
                " dim_labels=bf01_oi01->bf01",
            ),
            2 * 3 * 4 * 2,
        ),
    ],
)
def test_products_written_as_convolutions_are_counted_without_padding_and_holes(
    text: str, flops: int
) -> None:
    assert count(parse(text)).flops.total() == flops


TRAFFIC = """HloModule jit_f
%weights (w: bf16[64,32]) -> bf16[64,32] {
  %w = bf16[64,32]{1,0} parameter(0)
  ROOT %same = bf16[64,32]{1,0} bitcast(%w)
}

%product (h: f32[8,32], v: bf16[64,32]) -> f32[8,64] {
  %h = f32[8,32]{1,0} parameter(0)
  %v = bf16[64,32]{1,0} parameter(1)
  %w.1 = bf16[64,32]{1,0} fusion(%v), kind=kLoop, calls=%weights
  ROOT %convolution = f32[8,64]{1,0} convolution(%h, %w.1), dim_labels=bf_oi->bf
}

%put (out: f32[100,8,64], y: f32[8,64], i: s32[]) -> f32[100,8,64] {
  %out = f32[100,8,64]{2,1,0} parameter(0)
  %y = f32[8,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %piece = f32[1,8,64]{2,1,0} bitcast(%y)
  ROOT %put = f32[100,8,64]{2,1,0} dynamic-update-slice(%out, %piece, %i, %zero, %zero)
}

%take (xs: f32[100,8,32], k: s32[]) -> f32[8,32] {
  %xs = f32[100,8,32]{2,1,0} parameter(0)
  %k = s32[] parameter(1)
  %nought = s32[] constant(0)
  %slice = f32[1,8,32]{2,1,0} dynamic-slice(%xs, %k, %nought, %nought), dynamic_slice_sizes={1,8,32}
  ROOT %row = f32[8,32]{1,0} bitcast(%slice)
}

ENTRY %main (a: f32[100,8,32], b: bf16[64,32], c: f32[100,8,64]) -> f32[100,8,64] {
  %a = f32[100,8,32]{2,1,0:T(8,128)} parameter(0)
  %b = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(1)
  %c = f32[100,8,64]{2,1,0:T(8,128)} parameter(2)
  %n = s32[]{:T(128)S(6)} constant(3)
  %x = f32[8,32]{1,0:T(8,128)S(1)} fusion(%a, %n), kind=kLoop, calls=%take, backend_config={"window_config":{"estimated_cycles":"100"}}
  %start = (bf16[64,32]{1,0:T(8,128)(2,1)S(1)}, bf16[64,32]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%b)
  %near = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} copy-done(%start)
  %y.1 = f32[8,64]{1,0:T(8,128)S(1)} fusion(%x, %b), kind=kOutput, calls=%product
  %y.2 = f32[8,64]{1,0:T(8,128)S(1)} fusion(%x, %near), kind=kOutput, calls=%product, backend_config={"window_config":{"estimated_cycles":"20"}}
  %sum = f32[8,64]{1,0:T(8,128)S(1)} add(%y.1, %y.2)
  ROOT %done = f32[100,8,64]{2,1,0:T(8,128)} fusion(%c, %sum, %n), kind=kLoop, calls=%put
}
"""


def test_traffic_is_what_leaves_the_chip() -> None:
    row = 4 * 8 * 32  # of 100 rows one is read, into memory on the chip
    # Once brought on the chip, once read by a product where they are, once from the chip.
    weights = 2 * 64 * 32
    piece = 4 * 8 * 64  # of 100 pieces one is written
    assert count(parse(TRAFFIC)).hbm_bytes == row + 2 * weights + piece


def test_the_compilers_cycles_are_added_up() -> None:
    assert count(parse(TRAFFIC)).cycles == 120


def test_exchanges_are_found_with_their_bytes() -> None:
    text = """HloModule jit_f
ENTRY %main (a: f32[10,3], b: bf16[7]) -> (f32[10,3], bf16[7]) {
  %a = f32[10,3]{1,0} parameter(0)
  %b = bf16[7]{0} parameter(1)
  %all-reduce-start = (f32[10,3]{1,0}, bf16[7]{0}) all-reduce-start(%a, %b), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
  ROOT %all-reduce-done = (f32[10,3]{1,0}, bf16[7]{0}) all-reduce-done(%all-reduce-start)
}
"""
    (exchange,) = count(parse(text)).exchanges.values()
    assert exchange == Exchange("all-reduce", overlapped=True, n_bytes=4 * 30 + 2 * 7, number=1)


CHAIN = """HloModule jit_f
%begin (a: bf16[6,64]) -> (bf16[6,64], bf16[6,512], u32[]) {
  %a = bf16[6,64]{1,0} parameter(0)
  %all-gather = bf16[6,512]{1,0} all-gather(%a), dimensions={1}, frontend_attributes={chain_id="0"}
  ROOT %custom-call = (bf16[6,64]{1,0}, bf16[6,512]{1,0}, u32[]{:S(2)}) custom-call(%all-gather), custom_call_target="AsyncCollectiveStart"
}

%go_on (a.1: bf16[6,64], whole: bf16[6,512], token: u32[], h: bf16[8,64]) -> (f32[8,6], bf16[6,64], bf16[6,512], u32[]) {
  %a.1 = bf16[6,64]{1,0} parameter(0)
  %whole = bf16[6,512]{1,0} parameter(1)
  %token = u32[]{:S(2)} parameter(2)
  %h = bf16[8,64]{1,0} parameter(3)
  %v = bf16[6,64]{1,0} parameter(4)
  %convolution = f32[8,6]{1,0} convolution(%h, %v), dim_labels=bf_oi->bf
  %all-gather.1 = bf16[6,512]{1,0} all-gather(%a.1), dimensions={1}, frontend_attributes={chain_id="0"}
  ROOT %t = (f32[8,6]{1,0}, bf16[6,64]{1,0}, bf16[6,512]{1,0}, u32[]{:S(2)}) tuple(%convolution, %a.1, %all-gather.1, %token)
}

ENTRY %main (x: bf16[6,64], y: bf16[8,64], z: bf16[6,64]) -> (f32[8,6], bf16[6,64], bf16[6,512], u32[]) {
  %x = bf16[6,64]{1,0} parameter(0)
  %y = bf16[8,64]{1,0} parameter(1)
  %z = bf16[6,64]{1,0} parameter(2)
  %begun = (bf16[6,64]{1,0}, bf16[6,512]{1,0}, u32[]{:S(2)}) fusion(%x), kind=kCustom, output_to_operand_aliasing={{0}: (0, {})}, calls=%begin
  %part = bf16[6,64]{1,0} get-tuple-element(%begun), index=0
  %all = bf16[6,512]{1,0} get-tuple-element(%begun), index=1
  %on = u32[]{:S(2)} get-tuple-element(%begun), index=2
  ROOT %gone = (f32[8,6]{1,0}, bf16[6,64]{1,0}, bf16[6,512]{1,0}, u32[]{:S(2)}) fusion(%part, %all, %on, %y, %z), kind=kOutput, output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (2, {})}, calls=%go_on
}
"""


def test_an_exchange_that_continues_beside_products_is_counted_where_it_begins() -> None:
    cost = count(parse(CHAIN))
    assert cost.exchanges == {
        ("all-gather", True): Exchange("all-gather", True, n_bytes=2 * 6 * 64, number=1)
    }
    exchanged = 2 * 6 * 64 + 2 * 6 * 512
    product = 2 * 8 * 64 + 2 * 6 * 64 + 4 * 8 * 6
    assert cost.hbm_bytes == exchanged + product


@pytest.mark.parametrize(
    ("dtype", "n_bytes"),
    [("bf16", 12), ("f32", 24), ("pred", 6), ("s4", 3), ("f8e4m3fn", 6), ("token", 0)],
)
def test_bytes_of_an_array(dtype: str, n_bytes: int) -> None:
    assert HloArray(dtype, (2, 3), 0).n_bytes == n_bytes


def test_a_text_without_a_program_is_refused() -> None:
    with pytest.raises(ValueError, match="no entry"):
        parse("HloModule jit_f\n")
