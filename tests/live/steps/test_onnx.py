"""Exported graphs against torch, in ONNX Runtime; and files that are not what they should be."""

import json
import shutil
import sys
import zlib

import numpy as np
import pytest
from narrow_processor import PROCESSORS, run_on
from own_recordings import LETTERS, OTHERS, OWN
from small_models import N_FEATURES, SESSIONS, make_model, trial
from small_training import schedule, write_recordings

from cortext.data.packed import pack
from cortext.errors import DataError, MissingLibrary, RunError
from cortext.features import AugmentationConfig
from cortext.models import (
    MODELS,
    GRUConfig,
    TransformerConfig,
    TripleGRUConfig,
    load_model,
    save_model,
)
from cortext.training import DatasetConfig, TrainConfig, train
from cortext_live.steps import processor
from cortext_live.steps.onnx import export_onnx
from cortext_live.steps.onnx_stepper import OnnxStepper
from cortext_live.steps.stepped import step_through, stepped_errors
from cortext_live.steps.stepping import TorchStepper, open_stepper

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

CASES = {
    "gru": (GRUConfig(n_units=32, n_layers=3), None),
    "transformer": (
        TransformerConfig(n_units=32, n_layers=2, n_heads=2, head_units=8, context_frames=6),
        None,
    ),
    "triple_gru": (TripleGRUConfig(noise_units=16, clean_units=32, noisy_units=8), None),
    "gru, a subset of the features": (GRUConfig(n_units=8, n_layers=1), [4, 0, 5]),
    "gru, diphones": (
        GRUConfig(n_units=8, n_layers=2, diphones=True, intermediate_layer=1),
        None,
    ),
    "gru, single bins": (GRUConfig(n_units=8, n_layers=2, patch_size=0), None),
}
EXPORTED = [  # an export takes seconds
    name if name in ("gru", "transformer") else pytest.param(name, marks=pytest.mark.slow)
    for name in CASES
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Makes, once each, a run directory and its export with int8."""
    made = {}

    def make(name):
        if name not in made:
            root = tmp_path_factory.mktemp("exported")
            save_model(make_model(*CASES[name]), root / "run")
            export_onnx(root / "run", root / "onnx", int8=True)
            made[name] = root
        return made[name]

    return make


@pytest.fixture
def directory(exported, tmp_path):
    """A copy of an export, to be spoilt."""
    return shutil.copytree(exported("gru") / "onnx", tmp_path / "onnx")


def replace_graph(directory, content):
    """Put another file in the graph's place, with a checksum that fits."""
    (directory / "model.onnx").write_bytes(content)
    description = json.loads((directory / "onnx.json").read_text())
    description["graphs"]["fp32"]["crc32"] = f"{zlib.crc32(content):08x}"
    (directory / "onnx.json").write_text(json.dumps(description))


def test_every_registered_model_is_exported_here():
    shipped = {kind for kind, model in MODELS.items() if model.__module__.startswith("cortext.")}
    assert shipped <= set(CASES)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_graph_gives_the_logits_of_the_whole_trial(exported, name):
    """With nothing of cortext around the graph.

    Names, shapes and types are those that the docs promise.
    """
    root = exported(name)
    model = load_model(root / "run")
    session = ort.InferenceSession(root / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    card = json.loads((root / "onnx" / "model.json").read_text())
    size, stride = (
        card["patch"][key] if card["patch"]["size"] else 1 for key in ("size", "stride")
    )
    for day, name in enumerate(SESSIONS):
        x_TC = trial(58, seed=day)
        whole_PV = model.logits(x_TC, name, smooth=False)
        if "pads" in card["patch"]:  # 58 bins are 14 patches of 4 and two bins
            x_TC = np.concatenate((x_TC, np.zeros((2, N_FEATURES), np.float32)))
        state, stepped = {}, []
        for first in range(0, len(x_TC) - size + 1, stride):
            features = x_TC[None, first : first + size]
            logits_BV, *leaves = session.run(
                None, {"features": features, "day": np.array([day]), **state}
            )
            names = [output.name.removeprefix("next_") for output in session.get_outputs()[1:]]
            state = dict(zip(names, leaves, strict=True))
            stepped.append(logits_BV[0])
        np.testing.assert_allclose(stepped, whole_PV, atol=1e-5)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_onnx_stepper_is_the_torch_stepper(exported, name):
    root = exported(name)
    ours, torchs = OnnxStepper(root / "onnx"), TorchStepper(load_model(root / "run"))
    assert (ours.session, ours.sessions, ours.n_features) == (
        torchs.session,
        torchs.sessions,
        torchs.n_features,
    )
    assert (ours.patch_size, ours.patch_stride) == (torchs.patch_size, torchs.patch_stride)
    assert ours.pads_last_patch == torchs.pads_last_patch == (name == "transformer")
    assert (ours.smoothing, ours.inventory) == (torchs.smoothing, torchs.inventory)
    for session in (SESSIONS[0], "latest"):  # the second utterance knows nothing of the first
        ours.use(session)
        torchs.use(session)
        np.testing.assert_allclose(
            step_through(ours, trial(59)), step_through(torchs, trial(59)), atol=1e-5
        )


def test_int8_is_near_and_smaller(exported):
    root = exported("gru")
    exact_PV, int8_PV = (
        step_through(open_stepper(root / "onnx", backend="onnx", precision=precision), trial())
        for precision in ("fp32", "int8")
    )
    assert 1e-4 < np.abs(int8_PV - exact_PV).max() < 0.1 * np.abs(exact_PV).max()
    assert (root / "onnx" / "model.int8.onnx").stat().st_size < (
        root / "onnx" / "model.onnx"
    ).stat().st_size


STEPS_OF_A_GRAPH = """
import sys
import numpy as np
import onnxruntime

graph, patches, logits = sys.argv[1:]
session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
state, found = {}, []
for patch_SC in np.load(patches):
    given = {"features": patch_SC[None], "day": np.array([0]), **state}
    logits_BV, next_state = session.run(None, given)
    state = {"state": next_state}
    found.append(logits_BV[0])
np.save(logits, found)
"""


@pytest.mark.parametrize("narrower", PROCESSORS)
def test_int8_is_as_near_on_every_processor(exported, tmp_path, narrower):
    """Sums of two products saturated on processors without VNNI: 28 % of a logit was lost."""
    folder = exported("gru") / "onnx"
    patches_PSC = np.random.default_rng(0).normal(size=(14, 14, N_FEATURES)).astype(np.float32)
    exact_PV, here_PV = (
        np.stack([stepper.step(patch_SC) for patch_SC in patches_PSC])
        for precision in ("fp32", "int8")
        for stepper in [OnnxStepper(folder, SESSIONS[0], precision)]
    )
    np.save(tmp_path / "patches.npy", patches_PSC)
    files = (tmp_path / "patches.npy", tmp_path / "logits.npy")
    run_on(narrower, STEPS_OF_A_GRAPH, folder / "model.int8.onnx", *files)
    there_PV = np.load(tmp_path / "logits.npy")
    assert np.abs(there_PV - exact_PV).max() < 0.1 * np.abs(exact_PV).max()
    # The products are the same integers; float32 sums may round an input to the next step.
    np.testing.assert_allclose(there_PV, here_PV, atol=0.01 * np.abs(exact_PV).max())


@pytest.mark.parametrize("name", EXPORTED)
def test_all_weights_of_int8_products_are_unsigned(exported, name):
    """What can overflow 16 bits is the sum of two products with signed weights."""
    graph = onnx.load(exported(name) / "onnx" / "model.int8.onnx").graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert products
    for _, weights, _, zeros in (node.input for node in products):
        assert arrays[weights].dtype == arrays[zeros].dtype == np.uint8
        assert (arrays[zeros] == 128).all()
        # Each column is scaled to -127 ... 127.
        assert (np.abs(arrays[weights].astype(int) - 128).max(axis=0) == 127).all()


@pytest.mark.parametrize("weights", ["int8", None])
def test_an_export_with_other_int8_weights_is_refused(directory, weights):
    description = json.loads((directory / "onnx.json").read_text())
    assert description["graphs"]["int8"].pop("weights") == "uint8"
    if weights is not None:
        description["graphs"]["int8"]["weights"] = weights
    (directory / "onnx.json").write_text(json.dumps(description))
    with pytest.raises(RunError, match=r"onnx\.json: not a description of an exported model"):
        OnnxStepper(directory, precision="int8")


def test_an_int8_graph_is_refused_where_its_products_are_not_exact(directory, monkeypatch):
    monkeypatch.setattr(processor, "products_are_exact", lambda weights: False)
    said = r"int8\.onnx: ONNX Runtime's sums of products with uint8 weights saturate .*run fp32"
    with pytest.raises(RunError, match=said):
        OnnxStepper(directory, precision="int8")
    OnnxStepper(directory)


@pytest.mark.slow
def test_an_int8_transformer_makes_the_errors_of_float32(tmp_path):
    pack(write_recordings(tmp_path / "files"), tmp_path / "data")
    config = TrainConfig(
        model=TransformerConfig(n_units=32, n_layers=2, n_heads=2, head_units=16, dropout=0.0),
        dataset=DatasetConfig(
            batch_size=12, days_per_batch=3, data_transforms=AugmentationConfig(white_noise_std=0.3)
        ),
        **schedule(300, lr_max=0.005),
        batches_per_val_step=300,
    )
    train(config, tmp_path / "data", tmp_path / "run", progress=False)
    export_onnx(tmp_path / "run", tmp_path / "onnx", int8=True)
    steppers = {name: OnnxStepper(tmp_path / "onnx", precision=name) for name in ("fp32", "int8")}
    errors = stepped_errors(steppers, tmp_path / "data")
    assert errors["fp32"]["per"] < 0.4  # it has learnt something
    assert abs(errors["int8"]["per"] - errors["fp32"]["per"]) < 0.05
    assert errors["int8"]["other_frames"] < 0.05


@pytest.mark.parametrize("attention", ["bidirectional", "chunked"])
def test_a_model_whose_frames_see_later_ones_is_refused_in_one_line(tmp_path, attention):
    chunk = 4 if attention == "chunked" else 1
    config = TransformerConfig(
        n_units=8, n_layers=1, n_heads=1, head_units=4, attention=attention, chunk_frames=chunk
    )
    save_model(make_model(config), tmp_path / "run")
    said = "depends on later frames, so it can be neither stepped live nor exported; train a causal"
    with pytest.raises(RunError, match=said):
        export_onnx(tmp_path / "run", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
    with pytest.raises(RunError, match=said):
        TorchStepper(load_model(tmp_path / "run"))


def test_the_description_says_what_was_written(exported):
    root = exported("gru")
    description = json.loads((root / "onnx" / "onnx.json").read_text())
    assert description["opset"] == 18
    assert description["inputs"] == {
        "features": [1, 14, N_FEATURES],
        "day": [1],
        "state": [3, 1, 32],
    }
    assert description["outputs"] == {"logits": [1, 41], "next_state": [3, 1, 32]}
    assert (
        description["graphs"]["fp32"]["largest_difference"]
        < 1e-5
        < description["graphs"]["int8"]["largest_difference"]
    )
    assert (root / "onnx" / "model.json").read_text() == (root / "run" / "model.json").read_text()
    graph = onnx.load(root / "onnx" / "model.onnx")
    onnx.checker.check_model(graph, full_check=True)
    assert {value.data_type for value in graph.graph.initializer} <= {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.INT64,
    }


def test_a_damaged_graph_is_refused_in_one_line(directory):
    content = (directory / "model.onnx").read_bytes()
    (directory / "model.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="the file has changed"):
        OnnxStepper(directory)
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    (directory / "model.onnx").write_bytes(changed)
    with pytest.raises(RunError, match="the file has changed"):
        OnnxStepper(directory)


@pytest.mark.parametrize(
    "change",
    [
        {"sessions": [*SESSIONS, "t15.2023.08.20"]},  # a day that the graph does not have
        {"sessions": SESSIONS[::-1]},
        {"inventory": {"name": "other", "symbols": ["a", "b"]}},
        {"patch": {}},
    ],
)
def test_a_description_of_another_model_is_refused_in_one_line(directory, change):
    card = json.loads((directory / "model.json").read_text()) | change
    (directory / "model.json").write_text(json.dumps(card))
    with pytest.raises(RunError, match=r"model\.json: the file has changed.*copy the file again"):
        OnnxStepper(directory)


@pytest.mark.parametrize(
    "content", [b"", b"no graph at all", bytes(1000), b"\x08\x0a\x3a\x05abcde"]
)
def test_what_is_no_graph_is_refused_in_one_line(directory, content):
    replace_graph(directory, content)
    with pytest.raises(RunError) as error:
        OnnxStepper(directory)
    assert "\n" not in str(error.value)
    assert "model.onnx" in str(error.value)


def test_a_graph_that_gives_no_next_state_is_refused(directory):
    """Its steps would all begin a trial."""
    graph = onnx.load(directory / "model.onnx")
    del graph.graph.output[-1]
    replace_graph(directory, graph.SerializeToString())
    with pytest.raises(RunError, match=r"the graph takes the state .*, and gives the next one as"):
        OnnxStepper(directory)


def test_logits_that_are_not_finite_are_refused_as_by_torch(directory):
    stepper = OnnxStepper(directory)
    patch_SC = np.full((stepper.patch_size, stepper.n_features), np.nan, dtype=np.float32)
    with pytest.raises(RunError, match="logits that are not finite for this patch"):
        stepper.step(patch_SC)


def test_a_graph_of_another_origin_is_refused(directory):
    helper = onnx.helper
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "foreign", value[:1], value[1:]
    )
    foreign = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    replace_graph(directory, foreign.SerializeToString())
    with pytest.raises(RunError, match="not of one export"):
        OnnxStepper(directory)


def test_a_graph_cannot_make_other_files_be_read(directory, tmp_path):
    graph = onnx.load(directory / "model.onnx")
    onnx.save(
        graph,
        tmp_path / "other.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    shutil.copy(tmp_path / "weights", directory / "weights")
    replace_graph(directory, (tmp_path / "other.onnx").read_bytes())
    with pytest.raises(RunError, match="ONNX Runtime cannot read it"):
        OnnxStepper(directory)


def test_missing_files_and_precisions_are_named(directory, tmp_path):
    with pytest.raises(RunError, match=r"bf16.*torch"):
        OnnxStepper(directory, precision="bf16")
    (directory / "model.int8.onnx").unlink()
    with pytest.raises(RunError, match=r"model\.int8\.onnx: it cannot be read"):
        OnnxStepper(directory, precision="int8")
    (directory / "onnx.json").write_text("[]")
    with pytest.raises(RunError, match="not a description"):
        OnnxStepper(directory)
    (directory / "onnx.json").unlink()
    with pytest.raises(RunError, match="no exported model here"):
        OnnxStepper(directory)
    with pytest.raises(RunError, match=r"onnx\.json: no exported model here"):
        OnnxStepper(tmp_path)


def test_unknown_sessions_and_wrong_patches_are_refused(directory):
    with pytest.raises(RunError, match="knows no session"):
        OnnxStepper(directory, "t15.2020.01.01")
    with pytest.raises(DataError, match="patch of shape"):
        OnnxStepper(directory).step(np.zeros((13, N_FEATURES), np.float32))


@pytest.mark.parametrize("library", ["onnxruntime", "onnxscript"])
def test_without_the_extra_its_name_is_reported(exported, tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[onnx\]'"):
        export_onnx(exported("gru") / "run", tmp_path)


def test_a_model_that_does_not_tell_its_first_state_is_refused(exported, tmp_path, monkeypatch):
    run = exported("gru") / "run"
    monkeypatch.delattr(MODELS["gru"], "first_state")
    with pytest.raises(RunError, match="first_state"):
        export_onnx(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_that_fails_its_check_writes_nothing(exported, tmp_path, monkeypatch):
    run, graph = exported("gru") / "run", onnx.load(exported("gru") / "onnx" / "model.onnx")
    monkeypatch.setattr("cortext_live.steps.onnx._graph", lambda model: graph)  # it takes seconds
    monkeypatch.setattr("cortext_live.steps.onnx._difference", lambda model, content: (2e-5, 1.0))
    with pytest.raises(RunError, match=r"by up to 2e-05"):
        export_onnx(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """An export of a model of Spanish characters in bins of 10 ms."""
    root = tmp_path_factory.mktemp("own")
    save_model(make_model(GRUConfig(n_units=4, n_layers=1), conventions=OWN), root / "run")
    export_onnx(root / "run", root / "onnx")
    return root / "onnx"


def test_an_export_keeps_tokens_language_and_bins(own, exported):
    kept = {each.key: each.value for each in onnx.load(own / "model.onnx").metadata_props}
    found = json.loads(kept["cortext.conventions"])
    assert found["inventory"]["symbols"] == list(LETTERS.symbols)
    assert found["inventory"]["roles"] == {"blank": "_", "boundary": "|"}
    assert (found["language"], found["bin_ms"]) == ("es", 10)
    stepper = OnnxStepper(own)
    assert (stepper.conventions, stepper.frame_ms) == (OWN, 40)
    assert stepper.step(np.ones((14, N_FEATURES), np.float32)).shape == (len(LETTERS),)
    graph = onnx.load(exported("gru") / "onnx" / "model.onnx")
    assert "cortext.conventions" not in {each.key for each in graph.metadata_props}


@pytest.mark.parametrize("other", OTHERS)
def test_a_graph_beside_the_card_of_other_conventions_is_refused(own, tmp_path, other):
    conventions, said = OTHERS[other]
    directory = shutil.copytree(own, tmp_path / "onnx")
    card = make_model(GRUConfig(n_units=4, n_layers=1), conventions=conventions).card().to_json()
    (directory / "model.json").write_bytes(card)
    description = json.loads((directory / "onnx.json").read_text())
    description["card"] = f"{zlib.crc32(card):08x}"
    (directory / "onnx.json").write_text(json.dumps(description))
    with pytest.raises(RunError, match=f"the graph and model.json differ: in the graph {said}"):
        OnnxStepper(directory)


@pytest.mark.parametrize("damage", ["[", '{"bin_ms": 2}', '{"language": "xx"}', "{" * 9999])
def test_damaged_conventions_of_a_graph_are_refused_in_a_line(own, tmp_path, damage):
    directory = shutil.copytree(own, tmp_path / "onnx")
    graph = onnx.load(directory / "model.onnx")
    graph.metadata_props[-1].value = damage
    replace_graph(directory, graph.SerializeToString())
    with pytest.raises(
        RunError, match=r"the graph's cortext\.conventions cannot be read: "
    ) as error:
        OnnxStepper(directory)
    assert "\n" not in str(error.value)
