"""Random misuses of a module after penstock.initialize.

    python -X faulthandler misuse.py FIRST COUNT

Each seed makes a training and does things to it that are wrong, or in the wrong order. What must
hold: the process lives, exceptions have a line that says what to do, and no file has NaN in it.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import matrix
import penstock
import tiny_models
import torch

_STEPS = 12  # of one seed


class _Stop(Exception):
    pass


class Scene:
    """One training that is misused."""

    def __init__(self, seed: int, folder: str) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.name = self.random.choice(["odd", "odd", "gpt2", "llama", "lora"])
        checkpoint = self.random.choice([None, True, False])
        home = self.random.choice(matrix.HOMES)
        settings = matrix.config(home, folder, self.random.choice([1, 2]))
        made = tiny_models.make(self.name, checkpoint=checkpoint)
        self.model: Any
        self.model, self.optimizer = penstock.initialize(
            made, settings, run=os.path.join(folder, "run")
        )
        self.kept: list[Any] = []  # views, losses, open contexts
        self.handles: list[Any] = []

    def batch(self) -> Any:
        return tiny_models.batch(self.name, self.random.randrange(99))

    def loss(self) -> torch.Tensor:
        return tiny_models.loss_of(self.model(**self.batch()))

    def parameter(self) -> torch.nn.Parameter:
        return self.random.choice(list(self.model.parameters()))

    def module(self) -> torch.nn.Module:
        return self.random.choice(list(self.model.modules()))

    def path(self) -> str:
        return os.path.join(self.folder, f"file{self.random.randrange(10**9)}")


Action = Callable[[Scene], Any]
ACTIONS: list[Action] = []


def _action(function: Action) -> Action:
    ACTIONS.append(function)
    return function


@_action
def step(scene: Scene) -> None:
    scene.loss().backward()
    scene.optimizer.step()
    scene.optimizer.zero_grad()


@_action
def forward_alone(scene: Scene) -> None:
    scene.kept.append(scene.loss())


@_action
def backward_of_something_old(scene: Scene) -> None:
    for thing in scene.kept:
        if isinstance(thing, torch.Tensor) and thing.requires_grad and thing.dim() == 0:
            thing.backward(retain_graph=scene.random.random() < 0.5)


@_action
def backward_twice(scene: Scene) -> None:
    loss = scene.loss()
    loss.backward(retain_graph=True)
    loss.backward()


@_action
def evaluate(scene: Scene) -> None:
    with scene.random.choice([torch.no_grad, torch.inference_mode])():
        scene.loss()


def _stop_in(scene: Scene, error: type[BaseException], where: str) -> None:
    module = scene.module()

    def stop(*_: Any) -> None:
        raise error

    def watch(_: Any, __: Any, output: Any) -> None:
        for tensor in output if isinstance(output, tuple) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(stop)

    if where == "forward":
        handle = module.register_forward_hook(stop)
    else:
        handle = module.register_forward_hook(watch)
    try:
        scene.loss().backward()
    finally:
        handle.remove()


@_action
def exception_in_forward(scene: Scene) -> None:
    _stop_in(scene, _Stop, "forward")


@_action
def interrupt_in_forward(scene: Scene) -> None:
    _stop_in(scene, KeyboardInterrupt, "forward")


@_action
def exception_in_backward(scene: Scene) -> None:
    _stop_in(scene, _Stop, "backward")


@_action
def interrupt_in_backward(scene: Scene) -> None:
    _stop_in(scene, KeyboardInterrupt, "backward")


@_action
def read_parameters(scene: Scene) -> None:
    p = scene.parameter()
    for read in (
        lambda: p + 1,
        lambda: p.norm(),
        lambda: p.flatten() * 2,
        lambda: torch.stack([p, p]),
        lambda: p.detach().clone(),
        lambda: torch.nn.utils.parameters_to_vector([p]),
        lambda: (p * p).sum().backward(),
    ):
        read()


@_action
def keep_views(scene: Scene) -> None:
    def keep(module: torch.nn.Module, *_: Any) -> None:
        for p in module.parameters():
            scene.kept += [p.detach().flatten()[:3], p.data, p.flatten()]

    scene.handles.append(scene.module().register_forward_pre_hook(keep))


@_action
def use_kept_views(scene: Scene) -> None:
    for thing in scene.kept:
        if isinstance(thing, torch.Tensor):
            thing + 1
            thing.clone().sum()


@_action
def write_kept_views(scene: Scene) -> None:
    for thing in scene.kept:
        if isinstance(thing, torch.Tensor) and not thing.requires_grad:
            thing.zero_()


@_action
def write_parameters(scene: Scene) -> None:
    p = scene.parameter()
    with torch.no_grad():
        scene.random.choice(
            [
                lambda: p.fill_(1),
                lambda: p.add_(1),
                lambda: p.copy_(torch.ones_like(p)),
                lambda: p.data.zero_(),
                lambda: torch.nn.init.ones_(p),
                lambda: torch.nn.utils.vector_to_parameters(torch.ones(p.numel()), [p]),
            ]
        )()


@_action
def assign_data(scene: Scene) -> None:
    p = scene.parameter()
    p.data = scene.random.choice(
        [torch.ones(p.shape), torch.ones(3), torch.ones(p.shape, dtype=torch.float64)]
    )


@_action
def assign_grad(scene: Scene) -> None:
    p = scene.parameter()
    p.grad = torch.ones(p.shape)


@_action
def move(scene: Scene) -> None:
    module = scene.module()
    scene.random.choice(
        [
            lambda: module.to(torch.bfloat16),
            lambda: module.half(),
            lambda: module.float(),
            lambda: module.to("meta"),
            lambda: module.to_empty(device="cpu"),
            lambda: module.share_memory(),
            lambda: module.apply(lambda inner: None),
        ]
    )()


@_action
def copy_or_pickle(scene: Scene) -> None:
    thing = scene.random.choice([scene.model, scene.module(), scene.parameter(), scene.optimizer])
    if isinstance(thing, torch.nn.Module) and next(thing.parameters(), None) is None:
        return
    scene.random.choice([copy.deepcopy, copy.copy, pickle.dumps])(thing)  # type: ignore[operator]


@_action
def save(scene: Scene) -> None:
    thing = scene.random.choice(
        [
            lambda: scene.model,
            lambda: scene.model.state_dict(),
            lambda: scene.module().state_dict(),
            lambda: list(scene.model.parameters()),
            lambda: scene.optimizer.state_dict(),
        ]
    )()
    torch.save(thing, scene.path())


@_action
def save_pretrained(scene: Scene) -> None:
    if scene.name != "odd":
        scene.model.save_pretrained(scene.path())


@_action
def load(scene: Scene) -> None:
    module = scene.module()
    module.load_state_dict({k: torch.ones_like(v) for k, v in module.state_dict().items()})


@_action
def gather(scene: Scene) -> None:
    context = penstock.gathered(scene.module(), write=scene.random.random() < 0.2)
    context.__enter__()
    scene.kept.append(context)


@_action
def leave_gathered(scene: Scene) -> None:
    for thing in list(scene.kept):
        if hasattr(thing, "__exit__"):
            scene.kept.remove(thing)
            thing.__exit__(None, None, None)


@_action
def step_within_gathered(scene: Scene) -> None:
    with penstock.gathered(scene.module()):
        step(scene)


@_action
def toggle(scene: Scene) -> None:
    p = scene.parameter()
    p.requires_grad_(not p.requires_grad)


@_action
def replace(scene: Scene) -> None:
    module = scene.module()
    for name, p in list(module.named_parameters(recurse=False)):
        if scene.random.random() < 0.5:
            setattr(module, name, torch.nn.Parameter(torch.ones(p.shape)))


@_action
def resize(scene: Scene) -> None:
    if scene.name != "odd":
        scene.model.resize_token_embeddings(70)


@_action
def group_options(scene: Scene) -> None:
    group = scene.optimizer.param_groups[0]
    key = scene.random.choice(["lr", "eps", "weight_decay"])
    group[key] = scene.random.choice([float("nan"), -1.0, "x", None, 1e-3])


@_action
def optimizer_calls(scene: Scene) -> None:
    scene.random.choice(
        [
            lambda: scene.optimizer.step(),
            lambda: scene.optimizer.add_param_group({"params": [scene.parameter()]}),
            lambda: scene.optimizer.load_state_dict({}),
            lambda: scene.optimizer.load_state_dict(
                {"penstock": {"uuid": "", "step": 1, "run": ""}}
            ),
            lambda: penstock.clip_grad_norm_(scene.model, scene.random.choice([0, -1, 1.0])),
            lambda: torch.nn.utils.clip_grad_norm_(scene.model.parameters(), 1.0),
            lambda: scene.optimizer.commit(),
            lambda: scene.model.zero_grad(),
        ]
    )()


@_action
def step_within_backward(scene: Scene) -> None:
    loss = scene.loss()
    loss.register_hook(lambda _: scene.optimizer.step())
    loss.backward()


@_action
def zero_grad_within_backward(scene: Scene) -> None:
    p = scene.parameter()
    if p.requires_grad:
        scene.handles.append(p.register_hook(lambda _: scene.optimizer.zero_grad()))
        scene.loss().backward()


@_action
def call_a_part(scene: Scene) -> None:
    if scene.name == "odd":
        block = scene.model.blocks[scene.random.randrange(4)]
        scene.random.choice([block, block.up, scene.model.bias])(torch.ones(2, tiny_models.WIDTH))


@_action
def other_threads(scene: Scene) -> None:
    def run() -> None:
        try:
            scene.loss().backward()
        except (RuntimeError, _Stop):
            pass

    threads = [threading.Thread(target=run) for _ in range(scene.random.choice([1, 2]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@_action
def use_in_a_child(scene: Scene) -> None:
    child = os.fork()
    if child == 0:
        try:
            step(scene)
        except RuntimeError:
            pass
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), f"the child ended by signal {os.WTERMSIG(status)}"


@_action
def lose_hooks(scene: Scene) -> None:
    module = scene.module()
    module._forward_pre_hooks.clear()
    module._forward_hooks.clear()


@_action
def remove_a_block(scene: Scene) -> None:
    if scene.name == "odd":
        del scene.model.blocks[0]


@_action
def functional(scene: Scene) -> None:
    weights = {name: torch.ones(p.shape) for name, p in scene.model.named_parameters()}
    torch.func.functional_call(scene.model, weights, (), scene.batch())


@_action
def close_and_go_on(scene: Scene) -> None:
    if scene.random.random() < 0.2:
        scene.optimizer.close()


@_action
def initialize_again(scene: Scene) -> None:
    penstock.initialize(scene.model, {}, run=scene.path())


def _check_files(folder: str) -> None:
    """Raises if a file that torch or safetensors wrote has NaN in it."""
    from safetensors.torch import load_file

    def check(value: Any, path: str) -> None:
        if isinstance(value, torch.Tensor):
            assert not value.is_floating_point() or not value.isnan().any(), f"{path} has NaN"
        elif isinstance(value, dict):
            for inner in value.values():
                check(inner, path)

    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if name.endswith(".safetensors"):
                check(load_file(path), path)
            elif name.startswith("file") and os.path.getsize(path):
                try:
                    value = torch.load(path, weights_only=False)
                except (RuntimeError, EOFError, pickle.UnpicklingError):
                    continue  # torch.save ended by an exception
                check(value, path)


def misuse(seed: int) -> list[str]:
    """Runs a seed; returns what was done, with the exception of each."""
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(seed, folder)
        try:
            for _ in range(_STEPS):
                action = scene.random.choice(ACTIONS)
                done.append(action.__name__)
                try:
                    action(scene)
                except (Exception, KeyboardInterrupt) as error:
                    done[-1] += f": {type(error).__name__}: {str(error).splitlines()[:1]}"
                    _check_error(error)
            _check_files(folder)
        except BaseException:
            print(f"seed {seed}:", *done, sep="\n  ", file=sys.stderr)
            raise
        finally:
            for handle in scene.handles:
                handle.remove()
            scene.optimizer.close()
            del scene
            gc.collect()
    return done


def _check_error(error: BaseException) -> None:
    if isinstance(error, AssertionError):
        raise error
    if isinstance(error, penstock.PenstockError):
        assert "\n" not in str(error), f"{error} has several lines"
        return
    # Python's and torch's own exceptions are clear where they come from the caller's own call.
    inner = traceback.extract_tb(error.__traceback__)[-1]
    ours = os.path.dirname(penstock.__file__) in inner.filename
    passed_on = inner.name == "__torch_function__"  # a function of torch that hooks only look at
    assert passed_on or not ours, f"{type(error).__name__}: {error}"


def main() -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        done = misuse(seed)
        if len(sys.argv) > 3:
            print(seed, *done, sep="\n  ")
    print(f"{count} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
