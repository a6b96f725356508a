"""Are both levels of the package bit for bit what penstock.reference computes?

bits.py DEVICE DTYPE...     DEVICE: cuda or cpu; DTYPE: bfloat16 or float32

The reference run has the same module on the device: after each backward its gradients are copied to
the CPU, where penstock.reference updates a twin, whose weights are copied back. Levels 1 and 2 then
train the same module on the same batches. torch's deterministic algorithms are on, and two
reference runs are compared first: if these differ, torch is not deterministic, and no cell can be
compared. A cell that differs does not end the others.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "4")  # tests run beside this part
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import package
from said import drive, say, scratch

package.load("transformers")

import models
import penstock
import torch
from penstock import reference

_STEPS = 4
_VOCABULARY = 1000
_RATES = {"lr": 1e-3, "weight_decay": 0.1}
# A place on the device itself is new in both levels; a build that has none refuses it.
_REFUSED = (penstock.InvalidArgumentError, penstock.UnavailableError, TypeError)

Weights = list[torch.Tensor]
Trained = tuple[list[float], Weights]


class Bits:
    """Trains on one device, and counts the cells that differ."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.bad = 0

    def model(self, dtype: torch.dtype, device: str | None = None) -> torch.nn.Module:
        made = models.gpt2(3, 96, 2, 64, _VOCABULARY, "eager")
        return made.to(dtype).to(device or self._device).train()

    def losses(
        self,
        model: torch.nn.Module,
        micro_batches: int,
        end_micro: Callable[[], Any],
        end_step: Callable[[], Any],
    ) -> list[float]:
        losses = []
        for step in range(_STEPS):
            for micro in range(micro_batches):
                random = torch.Generator().manual_seed(100 * step + micro)
                tokens = torch.randint(0, _VOCABULARY, (2, 64), generator=random)
                tokens = tokens.to(self._device)
                loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                end_micro()
                losses.append(float(loss.detach()))
            end_step()
        return losses

    def yardstick(self, dtype: torch.dtype, micro_batches: int) -> Trained:
        model, twin = self.model(dtype), self.model(dtype, "cpu")
        pairs = list(zip(model.parameters(), twin.parameters()))
        optimizer = reference.AdamW(twin.parameters(), model=twin, **_RATES)

        def end_micro() -> None:
            for mine, other in pairs:
                other.grad, mine.grad = mine.grad.cpu(), None
            if micro_batches > 1:
                optimizer.micro_batch()

        @torch.no_grad()
        def end_step() -> None:
            optimizer.step()
            optimizer.zero_grad()
            for mine, other in pairs:
                mine.copy_(other)

        losses = self.losses(model, micro_batches, end_micro, end_step)
        return losses, [parameter.detach() for parameter in twin.parameters()]

    def level1(self, dtype: torch.dtype, home: str, late: bool) -> Trained:
        """penstock.AdamW; `late`: updates run under the next forward."""
        model = self.model(dtype)
        folder = scratch() / f"level1-{home}-{late}-{dtype}"
        where: dict[str, Any] = {"run": folder}
        config: dict[str, Any] = {"penstock": {"tile_elements": 16384, "tier_split": False}}
        if home == "nvme":
            where.update(nvme_path=str(drive()), host_memory="64MiB")
        if home == "none":
            where["home"] = "device"
        if late:
            where["model"] = model
        optimizer = penstock.AdamW(model.parameters(), config=config, **_RATES, **where)
        try:
            end = self._ends(optimizer)
            losses = self.losses(model, 1, lambda: None, end)
            getattr(optimizer, "synchronize", lambda: None)()
            return losses, [parameter.detach().cpu() for parameter in model.parameters()]
        finally:
            optimizer.close()

    def level2(self, dtype: torch.dtype, home: str, micro_batches: int) -> Trained:
        """penstock.initialize, with everything in one home."""
        folder = scratch() / f"level2-{home}-{micro_batches}-{dtype}"
        where = {"device": home, **({"nvme_path": str(drive())} if home == "nvme" else {})}
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 0.0,
            "bf16": {"enabled": dtype == torch.bfloat16},
            "optimizer": {"type": "AdamW", "params": _RATES},
            "zero_optimization": {"stage": 3, "offload_param": where, "offload_optimizer": where},
            "penstock": {"tier_split": False, "tile_elements": 16384},
        }
        model, optimizer = penstock.initialize(self.model(dtype), config, run=folder)
        try:
            losses = self.losses(model, micro_batches, lambda: None, self._ends(optimizer))
            with penstock.gathered(model):
                return losses, [p.detach().cpu().clone() for p in model.parameters()]
        finally:
            optimizer.close()

    def _ends(self, optimizer: Any) -> Callable[[], None]:
        def end() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return end

    def compare(self, name: str, expected: Trained, train: Callable[[], Trained]) -> None:
        """Trains a cell and says whether it is equal."""
        try:
            losses, weights = train()
        except _REFUSED as error:
            if ", none" not in name:
                self._failed(name, error)
            else:
                say(name=name, unsupported=f"{type(error).__name__}: {error}"[:300])
            return
        except Exception as error:
            self._failed(name, error)
            return
        same = losses == expected[0] and all(map(torch.equal, weights, expected[1]))
        more = {}
        if not same:
            self.bad += 1
            pairs = list(zip(losses, expected[0]))
            more["first_loss"] = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            apart = [
                float((a.float() - b.float()).abs().max()) for a, b in zip(weights, expected[1])
            ]
            more["worst_weight"] = max(apart)
        say(name=name, bits="equal" if same else "DIFFER", **more)

    def _failed(self, name: str, error: Exception) -> None:
        traceback.print_exc(file=sys.stdout)
        say(name=name, error=f"{type(error).__name__}: {error}"[:300])
        self.bad += 1

    def cells(
        self, dtypes: list[torch.dtype]
    ) -> Iterator[tuple[str, torch.dtype, int, Callable[[], Trained]]]:
        """Name, dtype and micro-batches of each cell, and what trains it; the most wanted first."""
        homes = ("cpu", "none", "nvme") if drive() is not None else ("cpu", "none")
        for dtype in dtypes:
            kind = str(dtype).removeprefix("torch.")
            for home in homes:
                for count in (1, 3):
                    yield (
                        f"level 2, {home}, {kind}, {count} micro-batches",
                        *(dtype, count),
                        lambda d=dtype, h=home, c=count: self.level2(d, h, c),
                    )
                for late in (False, True):
                    yield (
                        f"level 1, {home}, {kind}{', late' if late else ''}",
                        *(dtype, 1),
                        lambda d=dtype, h=home, x=late: self.level1(d, h, x),
                    )

    def run(self, dtypes: list[torch.dtype]) -> int:
        if drive() is None:
            say(name="nvme", missing="no folder has O_DIRECT")
        found: dict[tuple[torch.dtype, int], Trained] = {}
        for name, dtype, count, train in self.cells(dtypes):
            if (dtype, count) not in found:
                found[dtype, count] = self.yardstick(dtype, count)
                twice = f"torch twice, {dtype}, {count} micro-batches"
                self.compare(
                    twice,
                    found[dtype, count],
                    lambda d=dtype, c=count: self.yardstick(d, c),  # type: ignore[misc]
                )
            self.compare(name, found[dtype, count], train)
        return 1 if self.bad else 0


def main() -> int:
    device, *dtypes = sys.argv[1:]
    if device == "cuda" and not torch.cuda.is_available():
        print("error: torch sees no GPU")
        return 1
    torch.use_deterministic_algorithms(True, warn_only=True)
    return Bits(device).run([getattr(torch, name) for name in dtypes])


if __name__ == "__main__":
    sys.exit(main())
