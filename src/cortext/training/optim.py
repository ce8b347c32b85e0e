"""AdamW (Loshchilov and Hutter, ICLR 2019) with the parameter groups and schedules of the release.

There are three groups: biases (no decay), day layers (their own learning rate and decay), and the
rest. The release has one parameter per day. A day that is absent from a batch has no gradient
there, and AdamW skips its weights, moments and step count. Here the days are one tensor, and absent
days have a gradient of zero, with which AdamW would still move them. `DayAdamW` therefore updates
only the days of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.adamw import adamw

from cortext.training.config import TrainConfig


def lr_factor(step: int, kind: str, floor: float, decay_steps: int, warmup_steps: int) -> float:
    """Return the learning rate of a batch as a fraction of the highest.

    Args:
        step: Number of the batch, from 0.
        kind: `cosine` rises linearly from 0 at batch 0 to 1 at `warmup_steps`, then falls as half
            a cosine to `floor` at `decay_steps`. `linear` falls in a straight line from 1 at batch
            0 to `floor` at `decay_steps`.
        floor: Lowest fraction, which stays after `decay_steps`.
        decay_steps: Batch at which the decay ends.
        warmup_steps: Batches of warm-up; `linear` ignores it.
    """
    if kind == "linear":
        return 1 + (floor - 1) * min(step, decay_steps) / decay_steps
    if step < warmup_steps:
        return step / warmup_steps
    if step >= decay_steps:
        return floor
    progress = (step - warmup_steps) / max(1, decay_steps - warmup_steps)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def step_factor(step: int, steps: Sequence[int], gamma: float) -> float:
    """Return the learning rate of a batch of the multistep schedule as a fraction of the highest.

    Args:
        step: Number of the batch, from 0.
        steps: Batches at which the rate falls; they have the lower rate.
        gamma: Factor of the rate at each of them.
    """
    return float(gamma ** sum(step >= number for number in steps))


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate at batch `step`, from 0, of all parameters but the day layers."""
    c = config
    kind = config.lr_scheduler_type
    if kind == "multistep":
        return c.lr_max * step_factor(step, c.lr_steps, c.lr_gamma)
    return c.lr_max * lr_factor(
        step, kind, c.lr_min / c.lr_max, c.lr_decay_steps, c.lr_warmup_steps
    )


def day_learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of the day layers at batch `step`, from 0."""
    c = config
    if c.lr_scheduler_type == "multistep":
        return c.lr_max_day * step_factor(step, c.lr_steps, c.lr_gamma)
    if c.lr_scheduler_type == "linear":  # the release scales all groups by the same straight line
        return c.lr_max_day * lr_factor(step, "linear", c.lr_min / c.lr_max, c.lr_decay_steps, 0)
    floor = c.lr_min_day / c.lr_max_day
    return c.lr_max_day * lr_factor(
        step, "cosine", floor, c.lr_decay_steps_day, c.lr_warmup_steps_day
    )


class FusedAdamW:
    """The same arithmetic as `torch.optim.AdamW(fused=True)`, to the bit, without that class.

    Importing the class loads torch's compiler, which takes 2 s of every start.

    Attributes:
        groups: Parameters and their weight decay.
        betas: Decays of the mean gradient and of the mean squared gradient.
        eps: Number added to the denominator.
        state: `exp_avg`, `exp_avg_sq` and `step` of each parameter that has been moved.
    """

    def __init__(
        self, groups: list[tuple[list[nn.Parameter], float]], betas: tuple[float, float], eps: float
    ) -> None:
        self.groups = groups
        self.betas = betas
        self.eps = eps
        self.state: dict[torch.Tensor, dict[str, torch.Tensor]] = {}

    @torch.no_grad()
    def step(
        self,
        lr: float | torch.Tensor,
        skipped: torch.Tensor,
        scale: torch.Tensor | None = None,
    ) -> None:
        """Move the parameters along their gradients.

        Args:
            lr: Learning rate; on CUDA a tensor is a float32 scalar there.
            skipped: Scalar on the device; 1 moves nothing.
            scale: Scalar on the device that the gradients are divided by; None for 1.
        """
        for parameters, weight_decay in self.groups:
            moved: list[torch.Tensor] = [
                parameter for parameter in parameters if parameter.grad is not None
            ]
            if not moved:
                continue
            states = [self._state(parameter) for parameter in moved]
            adamw(
                moved,
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                grad_scale=scale,
                found_inf=skipped,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,  # type: ignore[arg-type]
                weight_decay=weight_decay,
                eps=self.eps,
                maximize=False,
            )

    def _state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        if parameter not in self.state:
            zeros = {
                key: torch.zeros_like(parameter, memory_format=torch.preserve_format)
                for key in _MOMENTS
            }
            self.state[parameter] = zeros | {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device)
            }
        return self.state[parameter]


_MOMENTS = ("exp_avg", "exp_avg_sq")


class DayAdamW:
    """AdamW for tensors [days, ...]; a batch moves only the days that it has trials of.

    Each day has its own step count, as in the release, where each day is a parameter and AdamW
    skips a parameter without a gradient. One parameter per day would break
    `DistributedDataParallel`, and XLA would compile again for every set of days.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self.parameters = parameters
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.mean = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        self.square = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        shapes = {(len(parameter), parameter.device) for parameter in parameters.values()}
        n_days, device = max(shapes, default=(0, None))
        self.steps = torch.zeros(n_days, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step(
        self,
        days: torch.Tensor,
        lr: float | torch.Tensor,
        skipped: torch.Tensor,
        scale: torch.Tensor | None = None,
    ) -> None:
        """Move the given days along their gradients.

        Everything stays on the parameters' device, so that the call does not wait for it.

        Args:
            days: int64 days. One that is named twice moves once: all that is written to it is
                computed from what it was before.
            lr: Learning rate; a tensor is a float64 scalar on the device.
            skipped: Scalar on the device; 1 leaves weights, moments and step counts unchanged.
            scale: Scalar on the device that the gradients are divided by; None for 1.
        """
        if not self.parameters:
            return
        self.steps[days] += (1 - skipped).long()
        # In float32, 1 - 0.999 ** step would keep four digits in the first steps.
        steps = self.steps[days].double()
        step_sizes = lr / (1 - self.betas[0] ** steps)
        roots = (1 - self.betas[1] ** steps).sqrt()
        moves = skipped == 0
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            per_day = (-1, *[1] * (parameter.dim() - 1))
            step_size = step_sizes.float().view(per_day)
            root = roots.float().view(per_day)
            gradient = parameter.grad[days]
            if scale is not None:
                gradient = gradient / scale
            before = parameter[days]
            mean_before = self.mean[name][days]
            square_before = self.square[name][days]
            mean = torch.lerp(mean_before, gradient, 1 - self.betas[0])
            square = (square_before * self.betas[1]).addcmul_(
                gradient, gradient, value=1 - self.betas[1]
            )
            decayed = before * (1 - lr * self.weight_decay)
            after = decayed - step_size * mean / (square.sqrt() / root + self.eps)
            parameter[days] = torch.where(moves, after, before)
            self.mean[name][days] = torch.where(moves, mean, mean_before)
            self.square[name][days] = torch.where(moves, square, square_before)


class Optimizer:
    """The optimiser of a run.

    `step` moves the parameters of a model, `state` and `load` are for checkpoints.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.config = config
        trainable = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        days = {
            name: parameter
            for name, parameter in trainable.items()
            if name.rpartition(".")[2].startswith("day_")
        }
        self.shared = {name: parameter for name, parameter in trainable.items() if name not in days}
        is_bias = {name: "bias" in name.rpartition(".")[2] for name in self.shared}
        betas = (config.beta0, config.beta1)
        biases = [parameter for name, parameter in self.shared.items() if is_bias[name]]
        others = [parameter for name, parameter in self.shared.items() if not is_bias[name]]
        self.adam = FusedAdamW(
            [(biases, 0.0), (others, config.weight_decay)], betas, config.epsilon
        )
        self.day_adam = DayAdamW(days, betas, config.epsilon, config.weight_decay_day)
        self.trainable = list(trainable.values())
        # On a GPU AdamW divides the gradients while it reads them, which saves a pass over them.
        self.clips_in_adam = self.trainable[0].device.type == "cuda" if trainable else False

    def step(self, step: int, days: torch.Tensor) -> torch.Tensor:
        """Move the parameters with the learning rates of batch `step`, from 0; see `move`."""
        lr, day_lr = learning_rate(self.config, step), day_learning_rate(self.config, step)
        return self.move(days, lr, day_lr)

    def move(
        self, days: torch.Tensor, lr: float | torch.Tensor, day_lr: float | torch.Tensor
    ) -> torch.Tensor:
        """Clip the gradients, move the parameters, clear the gradients.

        A norm that is not finite moves nothing. The call does not wait for the device.

        Args:
            days: int64 on the parameters' device, the recording days in the batch.
            lr: Learning rate of all parameters but the day layers; see `FusedAdamW.step`.
            day_lr: Learning rate of the day layers; see `DayAdamW.step`.

        Returns:
            The norm before clipping, a scalar on the device.
        """
        norm, scale = self._clip()
        skipped = (~norm.isfinite()).float()
        self.adam.step(lr, skipped, scale)
        self.day_adam.step(days, day_lr, skipped, scale)
        self.clear()
        return norm

    @torch.no_grad()
    def _clip(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the norm, and the number to divide gradients by; None if they are clipped."""
        # Computed even without clipping: it is logged, and shows whether the gradient is finite.
        limit = self.config.grad_norm_clip_value or math.inf
        if not self.clips_in_adam:
            return nn.utils.clip_grad_norm_(self.trainable, limit, foreach=True), None
        gradients = [parameter.grad for parameter in self.trainable if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        return norm, ((norm + 1e-6) / limit).clamp(min=1.0)  # as in `clip_grad_norm_`

    def clear(self) -> None:
        """Clear the gradients."""
        # None, not zero: AdamW would move a parameter with a gradient of zero by its momentum.
        for parameter in self.trainable:
            parameter.grad = None

    def tensors(self) -> list[torch.Tensor]:
        """Return the moments and step counts."""
        of_days = [*self.day_adam.mean.values(), *self.day_adam.square.values()]
        others = [tensor for entry in self.adam.state.values() for tensor in entry.values()]
        return [*of_days, self.day_adam.steps, *others]

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments and step counts by name.

        `mean.<parameter>`, `square.<parameter>` and `steps.<parameter>`; the days' step counts are
        `day_steps`.
        """
        state = {"day_steps": self.day_adam.steps}
        state |= {f"mean.{name}": tensor for name, tensor in self.day_adam.mean.items()}
        state |= {f"square.{name}": tensor for name, tensor in self.day_adam.square.items()}
        for name, parameter in self.shared.items():
            if entry := self.adam.state.get(parameter):
                state |= {f"mean.{name}": entry["exp_avg"], f"square.{name}": entry["exp_avg_sq"]}
                state[f"steps.{name}"] = entry["step"]
        return state

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what `state` returned; a parameter that it lacks starts afresh."""
        self.adam.state.clear()
        self.day_adam.steps.copy_(state["day_steps"])
        for name in self.day_adam.parameters:
            self.day_adam.mean[name].copy_(state[f"mean.{name}"])
            self.day_adam.square[name].copy_(state[f"square.{name}"])
        for name, parameter in self.shared.items():
            if f"steps.{name}" in state:
                moments = {"exp_avg": state[f"mean.{name}"], "exp_avg_sq": state[f"square.{name}"]}
                self.adam.state[parameter] = {
                    key: tensor.to(parameter.device, copy=True)
                    for key, tensor in ({"step": state[f"steps.{name}"]} | moments).items()
                }
