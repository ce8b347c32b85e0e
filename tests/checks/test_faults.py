"""Plug-ins with one mistake each: the check that finds it, and what it says.

A fault is a change of a plug-in that passes, as a stranger might make it.
"""

import itertools
import re

import pytest
from right_plugin import RIGHT

from cortext.errors import ConfigError
from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.plugins import load_plugin
from cortext.training.loss import LOSSES
from cortext_checks import check_model, check_plugin
from cortext_checks.augmentation import check_augmentation
from cortext_checks.loss import check_loss

FAULTS = {
    "the model ignores lengths": (
        ("nn.GRU(self.patch_width, config.n_units, ", "nn.GRU(self.patch_width, config.n_units // 2, bidirectional=True, "),
        ("torch.zeros(1, n_trials, self.config.n_units)", "torch.zeros(2, n_trials, self.config.n_units // 2)"),
        "model mine: padding: .*Recurrent.forward: a batch gives other logits than single trials, by up to 0\\.\\d+; .*n_patches_B",
    ),
    "it looks ahead": (
        ("x_BPI = self.inputs(x_BTC, day_B)\n", "x_BPI = self.inputs(x_BTC, day_B)\n        x_BPI = torch.cat([x_BPI[:, 1:], x_BPI[:, -1:]], 1)\n"),
        "model mine: look-ahead: .*Recurrent.forward: bins that are 1 frames ahead of a patch change its logits, by up to 0\\.\\d+; a model with a state",
    ),
    "it drops the state": (
        ("if state is None:", "if True:"),
        "model mine: pieces: .*Recurrent.forward: a trial in pieces gives other logits than the whole, by up to 0\\.\\d+",
    ),
    "its first state is another": (
        ("return torch.zeros(1, n_trials, self.config.n_units)", "return torch.ones(1, n_trials, self.config.n_units)"),
        ("state = self.first_state(len(x_BPI))", "state = torch.zeros(1, len(x_BPI), self.config.n_units)"),
        "model mine: pieces: .*Recurrent.first_state: a trial begun with it has other logits",
    ),
    "it counts other patches": (
        ("    def first_state", "    def n_patches(self, n_bins):\n        return n_bins // 4\n\n    def first_state"),
        r"model mine: shapes: .*Recurrent.forward: the logits are \[3, 15, 41\]; n_patches promises 18 frames; make n_patches count",
    ),
    "it counts patches of integers only": (
        ("    def first_state", "    def n_patches(self, n_bins):\n        return max(0, (n_bins - 14) // 4 + 1)\n\n    def first_state"),
        r"model mine: shapes: .*mine\.py:\d+: Recurrent.n_patches raises \w+",
    ),
    "a gradient is detached": (
        ("self.out(hidden_BPD)", "self.out(hidden_BPD.detach())"),
        "model mine: unused parameters: .*Recurrent.forward: no gradient reaches gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0; .*detach",
    ),
    "a gradient of the model is not finite": (
        ("self.out(hidden_BPD)", "self.out(hidden_BPD) + (self.out.weight[0, 0] * 0).sqrt()"),
        "model mine: gradients: .*Recurrent.forward: the gradient of out.weight is not finite",
    ),
    "a parameter is not used": (
        ("self.early = ", "self.spare = nn.Linear(3, 3)\n        self.early = "),
        "model mine: unused parameters: .*no gradient reaches spare.weight, spare.bias; ",
    ),
    "long trials overflow": (
        ("* self.scale\n", "* self.scale * torch.exp(torch.arange(x_BPI.shape[1]) - 20)[:, None]\n"),
        "model mine: long trials: .*Recurrent.forward: a trial of 3,000 bins gives logits that are not finite",
    ),
    "an artefact overflows": (
        ("* self.scale\n", "* self.scale + x_BTC.exp().mean() * 1e-9\n"),
        "model mine: long trials: .*a trial with features of 1000 gives logits",
    ),
    "a tensor is no buffer": (
        ('self.register_buffer("scale", torch.rand(n_classes))', "self.scale = torch.rand(n_classes)"),
        "model mine: tensors: .*Recurrent.__init__: scale is neither parameter nor buffer.*register_buffer",
        "model mine: save and load: .*other logits when it is read again, by up to 0\\.\\d+",
    ),
    "it keeps something of every call": (
        ("        logits_BPV = ", "        self.calls = getattr(self, 'calls', 0) + 1\n        hidden_BPD = hidden_BPD + self.calls * 0.1\n        logits_BPV = "),
        "model mine: repeats: .*the same batch gives other logits again, by up to 0\\.\\d+; keep nothing",
    ),
    "its dropout never ends": (
        ("self.out(hidden_BPD)", "self.out(nn.functional.dropout(hidden_BPD, 0.2))"),
        "model mine: repeats: .*draw nothing in evaluation",
    ),
    "it has 41 tokens whatever it is asked for": (
        ("        self.gru = ", "        n_classes = 41\n        self.gru = "),
        "model mine: builds: .*Recurrent.__init__: a model of 42 tokens has the same weights as one of 41; make as many logits as n_classes says",
    ),
    "its first weights are NumPy's": (
        ("torch.rand(n_classes)", "torch.from_numpy(np.random.rand(n_classes)).float()"),
        "model mine: builds: .*Recurrent.__init__: two models of one seed have different first weights",
    ),
    "it is built with other arguments": (
        ("def __init__(self, config, *, n_features, n_days, n_classes):", "def __init__(self, config, *, n_inputs, n_days, n_classes):"),
        "model mine: builds: .*mine\\.py:\\d+: Recurrent.__init__: TypeError.*; write def __init__.self, config, [*], n_features, n_days, n_classes",
    ),
    "it takes no lengths": (
        ("state=None, *, n_patches_B=None):", "state=None):"),
        "model mine: builds: .*Recurrent.forward: model 'mine' has a forward without n_patches_B",
    ),
    "it returns logits alone": (
        ('return Output(logits_BPV, state, {"early": self.early(x_BPI)})', "return logits_BPV"),
        r"model mine: shapes: .*Recurrent.forward: forward returns a Tensor; return \(logits, state\) or Output",
    ),
    "its logits are half": (
        ("Output(logits_BPV,", "Output(logits_BPV.half(),"),
        "model mine: shapes: .*the logits are float16; float32 is needed",
    ),
    "it gives too few tokens": (
        ("self.out = nn.Linear(config.n_units, n_classes)", "self.out = nn.Linear(config.n_units, n_classes - 1)"),
        ("* self.scale\n", "* self.scale[1:]\n"),
        r"model mine: shapes: .*the logits are \[3, 15, 40\]; \[3, 15, 41\] are needed",
    ),
    "its logits are infinite": (
        ("* self.scale\n", "* self.scale / 0\n"),
        "model mine: shapes: .*Recurrent.forward: the logits are not finite",
    ),
    "forward raises": (
        ("self.gru(x_BPI, state)", "self.gru(x_BPI[..., :-1], state)"),
        r"model mine: shapes: .*mine\.py:\d+: Recurrent.forward raises \w+: ",
    ),
    "a day parameter has no days": (
        ("self.early = ", "self.day_gain = nn.Parameter(torch.ones(1))\n        self.early = "),
        ("self.out(hidden_BPD) *", "self.out(hidden_BPD) * self.day_gain *"),
        r"model mine: gradients: .*day_gain is \[1\] for 3 days; make the day its first axis",
    ),
    "its logits have no gradient": (
        ('Output(logits_BPV, state, {"early": self.early(x_BPI)})', 'Output(logits_BPV.detach(), state, {"early": self.early(x_BPI).detach()})'),
        r"model mine: gradients: .*mine\.py:\d+: Recurrent.forward: the logits do not depend on the weights; look for detach",
    ),
    "it clips its input in place": (
        ("        x_BPI = ", "        x_BTC.clamp_(-1, 1)\n        x_BPI = "),
        "model mine: repeats: .*Recurrent.forward: the features that it is given change; work on a copy",
    ),
    "it keeps layers in a list": (
        ("        self.register_buffer", "        self.more = [nn.Linear(config.n_units, config.n_units)]\n        self.register_buffer"),
        "model mine: tensors: .*Recurrent.__init__: layers in more are no part of the model.*use nn.ModuleList",
    ),
    "the loss changes the labels": (
        ("        output = network", "        batch.labels_BU[batch.labels_BU == 0] = 1\n        output = network"),
        r"loss my_loss: values: .*MyLoss.__call__: the batch's labels_BU changes; work on a copy: batch\.labels_BU\.clone",
    ),
    "the loss is double": (
        ('"ctc": ctc_B}', '"ctc": ctc_B.double()}'),
        r"loss my_loss: values: .*MyLoss.__call__: the loss gives 'ctc' as float64; float32 is needed; give it with \.float",
    ),
    "the loss is called with less": (
        ("network, batch, fraction", "network, batch"),
        r"loss my_loss: values: .*mine\.py:\d+: MyLoss.__call__: TypeError: .*; write def __call__\(self, network, batch, fraction\)",
    ),
    "the loss is a mean": (
        ('{"loss": ctc_B + 0.1 * ctc_loss(output.extras["early"], *lengths), "ctc": ctc_B}', '{"loss": ctc_B.mean()}'),
        r"loss my_loss: values: .*mine\.py:\d+: MyLoss.__call__: the loss gives 'loss' of shape \[\] for 3 trials; give a value for each trial",
    ),
    "the loss has no name": (
        ('return {"loss": ctc_B + 0.1 * ctc_loss(output.extras["early"], *lengths), "ctc": ctc_B}', "return ctc_B"),
        "loss my_loss: values: .*MyLoss.__call__: the loss gives a Tensor; return a dict",
    ),
    "the loss reads padding": (
        ('"ctc": ctc_B}', '"ctc": ctc_B}\n'),
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B + output.logits.square().mean((1, 2))\n        return {\"loss\": ctc_B"),
        "loss my_loss: padding: .*MyLoss.__call__: what the padding holds changes the loss by up to",
    ),
    "the loss counts padding": (
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B / output.logits.shape[1]\n        return {\"loss\": ctc_B"),
        "loss my_loss: padding: .*more padding changes the loss by up to",
    ),
    "the loss reads the network": (
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B * network.config.n_units\n        return {\"loss\": ctc_B"),
        "loss my_loss: values: .*MyLoss.__call__ raises AttributeError: .*'config'",
    ),
    "the loss draws with NumPy": (
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B * np.random.rand()\n        return {\"loss\": ctc_B"),
        "loss my_loss: repeats: .*the same seed gives another loss",
    ),
    "the loss has no gradient": (
        ('{"loss": ctc_B + 0.1 * ctc_loss(output.extras["early"], *lengths), "ctc": ctc_B}', '{"loss": ctc_B.detach()}'),
        "loss my_loss: gradients: .*the loss does not depend on the weights",
    ),
    "its gradients are not finite": (
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B + (0 * output.logits.mean((1, 2))).sqrt()\n        return {\"loss\": ctc_B"),
        "loss my_loss: gradients: .*the gradients are not finite",
    ),
    "an empty label has no loss": (
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B / batch.n_labels_B\n        return {\"loss\": ctc_B"),
        "loss my_loss: empty label: .*no finite loss",
    ),
    "one impossible label spoils all": (
        ("        return {\"loss\": ctc_B", "        ctc_B = ctc_B - ctc_B.mean()\n        return {\"loss\": ctc_B"),
        "loss my_loss: long label: .*makes the loss of other trials not finite",
    ),
    "the augmentation changes its input": (
        ("return x_BTC + noise_BTC", "return x_BTC.add_(noise_BTC)"),
        r"augmentation my_noise: input: .*MyNoise.__call__: the batch that it is given changes; work on a copy",
    ),
    "the augmentation silences its input": (
        ("return x_BTC + noise_BTC", "return x_BTC.masked_fill_(noise_BTC > 1, 0.0)"),
        "augmentation my_noise: input: .*MyNoise.__call__: the batch that it is given changes",
    ),
    "the augmentation counts its calls": (
        ("return x_BTC + noise_BTC", "self.calls = getattr(self, 'calls', 0) + 1\n        return x_BTC + self.calls"),
        "augmentation my_noise: random numbers: .*a later call with the same generator gives another result; keep nothing",
    ),
    "the augmentation takes no generator": (
        ("x_BTC, n_bins_B, generator)", "x_BTC, n_bins_B)"),
        r"augmentation my_noise: shape: .*mine\.py:\d+: MyNoise.__call__: TypeError: .*; write def __call__\(self, x_BTC, n_bins_B, generator\)",
    ),
    "the augmentation draws elsewhere": (
        ("generator=generator, ", ""),
        "augmentation my_noise: random numbers: .*it draws from torch's global generator; give generator=generator",
    ),
    "the augmentation draws with NumPy": (
        ("return x_BTC + noise_BTC", "return x_BTC + float(np.random.rand())"),
        "augmentation my_noise: random numbers: .*the same generator gives another result",
    ),
    "the augmentation reads padding": (
        ("return x_BTC + noise_BTC", "return x_BTC - x_BTC.mean(1, keepdim=True)"),
        "augmentation my_noise: padding: .*what the padding holds changes the bins of a trial by up to",
    ),
    "the augmentation cuts": (
        ("return x_BTC + noise_BTC", "return x_BTC[:, 2:]"),
        r"augmentation my_noise: shape: .*MyNoise.__call__: a batch of shape \[3, 53, 8\] becomes \[3, 51, 8\]",
    ),
    "the augmentation divides by zero": (
        ("return x_BTC + noise_BTC", "return (x_BTC + noise_BTC) / 0"),
        "augmentation my_noise: shape: .*the result is not finite",
    ),
    "the augmentation is built with more": (
        ("def __init__(self, config):\n        self.config = config\n\n    def __call__(self, x_BTC", "def __init__(self, config, strength):\n        self.config = config\n\n    def __call__(self, x_BTC"),
        "augmentation my_noise: shape: .*MyNoise.__init__: TypeError.*'strength'; write def __init__.self, config[)]",
    ),
}  # fmt: skip
REFUSED = {
    "the name of a built-in": (
        (('"mine"', '"gru"'),),
        r"mine\.py:\d+: two models are called 'gru': .*GRU and .*Recurrent; give one of them another name",
    ),
    "settings that are no dataclass": (
        (("@dataclass\nclass RecurrentConfig", "class RecurrentConfig"),),
        r"mine\.py:\d+: the Config of model Recurrent is no dataclass; write @dataclass before its class",
    ),
    "a syntax error": ((("def forward(", "def forward"),), r"mine\.py:\d+: SyntaxError: "),
    "a model without its decorator": (
        (('@register("mine")\n', ""), ('@register_loss("my_loss")\n', ""), ('@register_augmentation("my_noise")\n', "")),
        r"mine\.py: the file registers no model, .*; class Recurrent: nothing registers it; write @register\(\.\.\.\)",
    ),
    "a library that is not there": ((("import torch\n", "import troch\n"),), r"mine\.py:\d+: ModuleNotFoundError: .*'troch'"),
}  # fmt: skip
number = itertools.count()


@pytest.fixture
def write(tmp_path, registries):
    """Writes a plug-in."""

    def written(*changes):
        text = RIGHT
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        folder = tmp_path / str(next(number))
        folder.mkdir()
        (folder / "mine.py").write_text(text)
        return folder / "mine.py"

    return written


def test_a_plugin_without_a_mistake_passes_every_check(write):
    report = check_plugin(write(), onnx=False)
    assert report.passed, report
    assert len(report.checks) == 14 + 7 + 5
    skipped = [
        (check.subject, check.name) for check in report.checks if check.status == "not checked"
    ]
    assert skipped[0] == ("model mine", "ONNX")
    assert set(skipped[1:]) <= {("augmentation my_noise", "GPU")}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_fails_the_check_that_is_for_it(write, fault):
    changes = [each for each in FAULTS[fault] if isinstance(each, tuple)]
    expected = [each for each in FAULTS[fault] if isinstance(each, str)]
    load_plugin(write(*changes))
    if expected[0].startswith("model"):
        checks = check_model("mine", onnx=False).checks
    elif expected[0].startswith("loss"):
        checks = check_loss(LOSSES["my_loss"].Config(), MODELS["mine"].Config())
    else:
        checks = check_augmentation(AUGMENTATIONS["my_noise"].Config())
    failed = [check for check in checks if check.status == "FAIL"]
    said = [f"{check.subject}: {check.name}: {check.found}" for check in failed]
    for pattern in expected:
        assert any(re.search(pattern, line) for line in said), (pattern, said)
    for line in map(str, checks):
        assert line.isprintable()
        assert len(line) < 1000


@pytest.mark.parametrize("fault", REFUSED)
def test_a_file_that_cannot_be_checked_is_refused_in_a_line(write, fault):
    changes, expected = REFUSED[fault]
    with pytest.raises(ConfigError, match=expected):
        check_plugin(write(*changes), onnx=False)
