import math

import numpy as np
import pytest
import torch
from torch import nn

from cortext.models import GRUConfig, build_model
from cortext.training import TrainConfig
from cortext.training.optim import (
    DayAdamW,
    FusedAdamW,
    Optimizer,
    day_learning_rate,
    learning_rate,
    lr_factor,
)


def test_cosine_schedule_by_hand():
    factors = [lr_factor(step, "cosine", 0.1, 110, 10) for step in (0, 5, 10, 60, 110, 500)]
    assert factors == pytest.approx([0, 0.5, 1, 0.55, 0.1, 0.1])


def test_linear_schedule_is_torchs():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=0.02, total_iters=7
    )
    for step in range(10):
        assert 2.0 * lr_factor(step, "linear", 0.02, 7, 0) == pytest.approx(
            schedule.get_last_lr()[0]
        )
        optimizer.step()
        schedule.step()


def test_day_layers_have_their_own_cosine_and_share_the_straight_line():
    settings = {
        "lr_max": 1.0,
        "lr_max_day": 4.0,
        "lr_min": 0.5,
        "lr_min_day": 0.4,
        "lr_decay_steps": 100,
    }
    settings |= {"lr_decay_steps_day": 50, "lr_warmup_steps": 0, "lr_warmup_steps_day": 10}
    cosine = TrainConfig(**settings)
    assert learning_rate(cosine, 100) == pytest.approx(0.5)
    assert [day_learning_rate(cosine, step) for step in (0, 5, 10, 30, 50)] == pytest.approx(
        [0, 2, 4, 2.2, 0.4]
    )
    linear = TrainConfig(**settings, lr_scheduler_type="linear")
    assert [
        learning_rate(linear, 50),
        day_learning_rate(linear, 50),
        day_learning_rate(linear, 100),
    ] == pytest.approx([0.75, 3, 2])


def test_the_multistep_schedule_of_all_weights_is_torchs():
    config = TrainConfig(
        lr_scheduler_type="multistep",
        lr_max=2e-3,
        lr_max_day=5e-3,
        lr_steps=[3, 7],
        lr_gamma=0.1,
        lr_warmup_steps=5,
    )
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))], "lr": rate}
        for rate in (config.lr_max, config.lr_max_day)
    ]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 7], gamma=0.1)
    for step in range(10):
        found = [learning_rate(config, step), day_learning_rate(config, step)]
        assert found == pytest.approx(schedule.get_last_lr(), rel=1e-12)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("repeated", [False, True])
def test_stacked_days_move_as_one_parameter_per_day_would(weight_decay, repeated):
    """The release: absent days have no gradient, so that AdamW leaves weights, moments and step
    counts alone. A day that is named again, to fill a list of fixed length, moves once.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, 3, generator=generator)
    stacked = nn.Parameter(start.clone())
    per_day = nn.ParameterList([nn.Parameter(day.clone()) for day in start])
    reference = torch.optim.AdamW(
        per_day, lr=1.0, betas=(0.9, 0.99), eps=0.1, weight_decay=weight_decay
    )
    ours = DayAdamW({"day": stacked}, (0.9, 0.99), 0.1, weight_decay)
    for step in range(12):
        # Day 3 is never seen.
        days = [day for day in range(3) if (step >> day) & 1 == 0 or day == step % 3]
        lr = 0.1 / (1 + step)
        stacked.grad = torch.zeros_like(stacked)
        for day in range(4):
            per_day[day].grad = None
        for day in days:
            per_day[day].grad = torch.randn(3, 3, generator=generator)
            stacked.grad[day] = per_day[day].grad
        reference.param_groups[0]["lr"] = lr
        reference.step()
        named = days + [days[-1]] * (4 - len(days)) if repeated else days
        # Numbers on the device, which a CUDA graph reads at each replay, do the same.
        rate = torch.tensor(lr, dtype=torch.float64) if repeated else lr
        ours.step(torch.tensor(named), rate, torch.tensor(0.0))
        torch.testing.assert_close(stacked.detach(), torch.stack([day.detach() for day in per_day]))
    assert torch.equal(stacked[3], start[3])


class ReleaseModel(nn.Module):
    """The shape of the release's model: one parameter per day."""

    def __init__(self, source):
        super().__init__()
        self.source = [source]  # not registered: only its code and shared weights are used
        self.gru, self.out, self.h0 = source.gru, source.out, source.h0
        self.day_weights = nn.ParameterList(
            [nn.Parameter(day.clone()) for day in source.day_weight.detach()]
        )
        self.day_biases = nn.ParameterList(
            [nn.Parameter(day.clone()[None]) for day in source.day_bias.detach()]
        )

    def forward(self, x_BTC, days):
        weights = torch.stack([self.day_weights[day] for day in days])
        biases = torch.cat([self.day_biases[day] for day in days]).unsqueeze(1)
        x = nn.functional.softsign(torch.einsum("btd,bdk->btk", x_BTC, weights) + biases)
        patches = x.unfold(1, 14, 4).permute(0, 1, 3, 2).flatten(2)
        hidden, _ = self.gru(patches, self.h0.expand(1, len(days), -1).contiguous())
        return self.out(hidden)


@pytest.mark.parametrize("in_adam", [False, True])
def test_training_moves_every_parameter_as_the_releases_optimiser_does(in_adam):
    """Clipped before AdamW, or in it and with learning rates as tensors, as on a GPU."""
    config = TrainConfig(
        model=GRUConfig(n_units=8, n_layers=1), weight_decay=0.1, lr_warmup_steps=2, lr_warmup_steps_day=3,
        lr_max=0.05, lr_max_day=0.02, lr_decay_steps=9, lr_decay_steps_day=7, grad_norm_clip_value=0.05, epsilon=0.01,
    )  # fmt: skip
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build_model(config.model, n_features=3, n_days=3, n_classes=41).eval())
    ours, release = models[0], ReleaseModel(models[1])
    optimizer = Optimizer(ours, config)
    assert not optimizer.clips_in_adam
    optimizer.clips_in_adam = in_adam
    named = dict(release.named_parameters())
    biases = [p for name, p in named.items() if "gru.bias" in name or "out.bias" in name]
    days = [p for name, p in named.items() if "day_" in name]
    others = [
        p
        for name, p in named.items()
        if not ("day_" in name or "gru.bias" in name or "out.bias" in name)
    ]
    groups = [
        {"params": biases, "weight_decay": 0},
        {"params": days, "lr": 0.02, "weight_decay": 0},
        {"params": others},
    ]
    reference = torch.optim.AdamW(groups, lr=0.05, betas=(0.9, 0.999), eps=0.01, weight_decay=0.1)

    def cosine(lowest, decay, warmup):
        def factor(step):
            if step < warmup:
                return step / warmup
            progress = min(1, (step - warmup) / (decay - warmup))
            return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress))

        return factor

    shared = cosine(0.0001 / 0.05, 9, 2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        reference, [shared, cosine(0.0001 / 0.02, 7, 3), shared]
    )
    generator = torch.Generator().manual_seed(1)
    for step in range(10):
        batch = [step % 2, step % 2, 0]
        x_BTC = torch.randn(3, 30, 3, generator=generator)
        for model in (ours, release):
            model.zero_grad()
            logits = model(x_BTC, torch.tensor(batch))
            (logits if model is release else logits[0]).logsumexp(-1).square().mean().backward()
        nn.utils.clip_grad_norm_(release.parameters(), 0.05)
        reference.step()
        schedule.step()
        days = torch.from_numpy(np.unique(batch))
        if in_adam:
            rates = learning_rate(config, step), day_learning_rate(config, step)
            optimizer.move(days, *(torch.tensor(rate, dtype=torch.float64) for rate in rates))
        else:
            optimizer.step(step, days)
    for name, parameter in ours.named_parameters():
        if name.startswith("day_"):
            expected = torch.stack(
                list(release.day_weights if "weight" in name else release.day_biases)
            )
            expected = expected.view_as(parameter)
        else:
            expected = named[name]
        torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=1e-5, msg=name)


def test_the_fused_steps_are_torchs_to_the_last_bit():
    """With a parameter that has no gradient at first, and a step that is to move nothing."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((5, 3), (5,), (2, 2))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    groups = [{"params": theirs[1:2], "weight_decay": 0.0}, {"params": [theirs[0], theirs[2]]}]
    reference = torch.optim.AdamW(
        groups, lr=1.0, betas=(0.9, 0.99), eps=0.1, weight_decay=0.1, fused=True
    )
    found = FusedAdamW([(ours[1:2], 0.0), ([ours[0], ours[2]], 0.1)], (0.9, 0.99), 0.1)
    for step in range(5):
        for mine, other in zip(ours[: 2 + (step > 1)], theirs, strict=False):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        skipped = torch.tensor(float(step == 3))
        for group in reference.param_groups:
            group["lr"] = 0.1 / (1 + step)
        reference.found_inf = skipped
        reference.step()
        found.step(0.1 / (1 + step), skipped)
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other)
            for key, tensor in reference.state[other].items():
                assert torch.equal(found.state[mine][key], tensor)


@pytest.mark.parametrize("in_adam", [False, True])
def test_a_gradient_that_is_not_finite_moves_nothing(in_adam):
    model = build_model(GRUConfig(n_units=4, n_layers=1), n_features=2, n_days=2, n_classes=41)
    optimizer = Optimizer(model, TrainConfig())
    optimizer.clips_in_adam = in_adam
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.out.bias.grad = torch.full_like(model.out.bias, math.nan)
    assert math.isnan(optimizer.step(5, torch.tensor([0])))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_state_survives_saving_and_loading():
    results = []
    for interrupted in (False, True):
        torch.manual_seed(0)
        model = build_model(GRUConfig(n_units=4, n_layers=1), n_features=2, n_days=3, n_classes=41)
        optimizer = Optimizer(model, TrainConfig(epsilon=1e-8))
        for step in range(6):
            if interrupted and step == 3:
                state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
                optimizer = Optimizer(model, TrainConfig(epsilon=1e-8))
                optimizer.load(state)
            model(torch.randn(1, 20, 2), torch.tensor([step % 2]))[0].square().mean().backward()
            optimizer.step(step + 500, torch.tensor([step % 2]))
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
