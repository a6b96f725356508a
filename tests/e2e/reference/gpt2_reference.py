"""GPT-2 in plain PyTorch: an independent reference for penstock's losses, gradients and weights.

Loads config.json and *.safetensors from --model, trains --steps steps on --data and prints one JSON
object:
  losses, grad_norms   of every step (the norm of the mean gradient, before clipping)
  loss_scales          after every step; 1 but in fp16
  parameters           how many there are
  gradients, weights   folders with one .npy a tensor: the first step's gradients, the final weights

Definitions (penstock's contracts): a row is T inputs and the same shifted by one as targets, R =
(tokens - 1) // T rows; micro-batch i takes rows i*B … i*B + B - 1 modulo R. The loss is the mean
over all tokens of a step. Gradients are divided by max(1, (norm + 1e-6) / clip), clip 0: not at all.
Weight decay skips biases and norm weights. The learning rate is constant.

With --dtype float16, weights, activations and gradients are rounded to fp16 wherever an operator
stores one, in both directions, and every operator computes in fp32: what hardware does that adds up
products of fp16 in fp32. The optimizer updates fp32 masters. The gradient has DeepSpeed's dynamic
loss scale; a step whose gradient is not finite is skipped.
"""
import argparse
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

SAFETENSORS_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_safetensors(path):
    """8 bytes of header length, a JSON header, raw little-endian data: {name: fp32 tensor}."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = SAFETENSORS_DTYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype)
        tensors[name.removeprefix("transformer.")] = flat.reshape(entry["shape"]).float()
    return tensors


def tensor_names(config):
    """The names that a model must have, in no particular order."""
    names = ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]
    for layer in range(config["n_layer"]):
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            names += [f"h.{layer}.{part}.weight", f"h.{layer}.{part}.bias"]
    return names


class RoundToHalf(torch.autograd.Function):
    """Rounds to fp16, and the gradient as well."""

    @staticmethod
    def forward(_, x):
        return x.half().float()

    @staticmethod
    def backward(_, gradient):
        return gradient.half().float()


def exact(x):
    return x


stored = exact  # what becomes of a tensor that an operator stores


def load_model(folder, dtype):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(read_safetensors(os.path.join(folder, name)))
    missing = [name for name in tensor_names(config) if name not in tensors]
    if missing:
        raise SystemExit(f"{folder}: no tensor {missing[0]} ({len(missing)} are missing)")
    weights = {name: tensors[name].to(dtype).requires_grad_() for name in tensor_names(config)}
    return config, weights


def read_tokens(path):
    dtype = {".bin": "<u2", ".u32": "<u4"}.get(os.path.splitext(path)[1], "u1")
    return torch.from_numpy(np.fromfile(path, dtype=dtype).astype(np.int64))


def micro_batch(tokens, index, batch, sequence):
    rows = (len(tokens) - 1) // sequence
    starts = [(index * batch + i) % rows * sequence for i in range(batch)]
    inputs = torch.stack([tokens[s : s + sequence] for s in starts])
    targets = torch.stack([tokens[s + 1 : s + 1 + sequence] for s in starts])
    return inputs, targets


def conv1d(w, name, x):
    return stored(x @ w[name + ".weight"] + w[name + ".bias"])


def norm(w, name, x, config):
    return stored(F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"],
                               config.get("layer_norm_epsilon", 1e-5)))


def gelu_new(x):
    return stored(0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def attention(q, k, v):
    """[batch, heads, T, C / heads] each, causal."""
    sequence = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
    return stored(stored(scores.masked_fill(future, float("-inf")).softmax(-1)) @ v)


def layer(w, name, x, config):
    batch, sequence, width = x.shape
    heads = config["n_head"]
    qkv = conv1d(w, name + ".attn.c_attn", norm(w, name + ".ln_1", x, config))
    q, k, v = (part.view(batch, sequence, heads, width // heads).transpose(1, 2)
               for part in qkv.split(width, dim=2))
    out = attention(q, k, v).transpose(1, 2).reshape(batch, sequence, width)
    x = stored(x + conv1d(w, name + ".attn.c_proj", out))
    hidden = gelu_new(conv1d(w, name + ".mlp.c_fc", norm(w, name + ".ln_2", x, config)))
    return stored(x + conv1d(w, name + ".mlp.c_proj", hidden))


def token_losses(w, config, inputs, targets):
    """-log p(target), one value a token."""
    w = {name: stored(weight) for name, weight in w.items()}
    x = stored(w["wte.weight"][inputs] + w["wpe.weight"][: inputs.shape[1]])
    for index in range(config["n_layer"]):
        x = layer(w, f"h.{index}", x, config)
    logits = stored(norm(w, "ln_f", x, config) @ w["wte.weight"].T)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def forward_backward(weights, config, tokens, step, scale, args):
    """Gradients of the step's mean loss times scale into weights; returns that loss. Steps count
    from 1."""
    total = args.accumulate * args.batch * args.sequence
    loss = 0.0
    for j in range(args.accumulate):
        index = (step - 1) * args.accumulate + j
        losses = token_losses(weights, config,
                              *micro_batch(tokens, index, args.batch, args.sequence))
        (losses.sum() * (scale / total)).backward()
        loss += losses.detach().double().sum().item()
    return loss / total


def clip_gradients(weights, clip):
    """DeepSpeed's formula; returns the norm before clipping."""
    norm_value = math.sqrt(sum(w.grad.double().square().sum().item() for w in weights.values()))
    factor = max(1.0, (norm_value + 1e-6) / clip) if clip > 0 else 1.0
    if factor > 1:
        for w in weights.values():
            w.grad /= factor
    return norm_value


class LossScale:
    """DeepSpeed's dynamic loss scale (runtime/fp16/loss_scaler.py), or 1 for ever."""

    def __init__(self, args):
        self.dynamic = args.dtype == "float16"
        self.value = 2.0**args.initial_scale_power if self.dynamic else 1.0
        self.full = self.hysteresis = args.hysteresis
        self.window, self.finite_steps = args.loss_scale_window, 0

    def update(self, overflow):
        if not self.dynamic:
            return
        if overflow:
            if self.hysteresis > 1:
                self.hysteresis -= 1
            else:
                self.value = max(self.value / 2, 1.0)
            self.finite_steps = 0
            return
        self.finite_steps += 1
        if self.finite_steps % self.window == 0:
            self.value, self.hysteresis = 2 * self.value, self.full


def unscale(weights, scale):
    """Takes the scale out of the gradients; returns whether they are finite."""
    for w in weights.values():
        w.grad = stored(w.grad) / scale
    return all(w.grad.isfinite().all() for w in weights.values())


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2."""

    def __init__(self, groups, lr, betas):
        super().__init__(groups, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                state = self.state[weight]
                m = state.setdefault("exp_avg", torch.zeros_like(weight))
                weight *= 1 - group["lr"] * group["weight_decay"]
                weight -= group["lr"] * torch.sign(beta1 * m + (1 - beta1) * weight.grad)
                state["exp_avg"] = beta2 * m + (1 - beta2) * weight.grad


class Lamb(torch.optim.Optimizer):
    """You et al., "Large Batch Optimization for Deep Learning", with a corrected step size and a
    bounded trust ratio, as DeepSpeed's."""

    def __init__(self, groups, lr, betas, eps, bounds):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps})
        self.bounds, self.steps = bounds, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            step = group["lr"] * (1 - beta2 ** self.steps) ** 0.5 / (1 - beta1 ** self.steps)
            for weight in group["params"]:
                state = self.state[weight]
                m = state.setdefault("exp_avg", torch.zeros_like(weight))
                v = state.setdefault("exp_avg_sq", torch.zeros_like(weight))
                m.mul_(beta1).add_(weight.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * weight
                norms = weight.double().norm().item(), update.double().norm().item()
                ratio = 1
                if all(norms):
                    ratio = min(max(norms[0] / norms[1], self.bounds[0]), self.bounds[1])
                weight -= step * ratio * update


def make_optimizer(weights, args):
    def decays(name):
        is_norm = name.split(".")[-2] in ("ln_1", "ln_2", "ln_f")
        return name.endswith(".weight") and not is_norm

    groups = [
        {"params": [w for n, w in weights.items() if decays(n)], "weight_decay": args.weight_decay},
        {"params": [w for n, w in weights.items() if not decays(n)], "weight_decay": 0.0},
    ]
    if args.optimizer == "Lion":
        return Lion(groups, lr=args.lr, betas=(args.beta1, args.beta2))
    if args.optimizer == "Lamb":
        return Lamb(groups, args.lr, (args.beta1, args.beta2), args.eps,
                    (args.min_coeff, args.max_coeff))
    if args.optimizer == "Adagrad":
        return torch.optim.Adagrad(groups, lr=args.lr, eps=args.eps, lr_decay=args.lr_decay,
                                   initial_accumulator_value=args.initial_accumulator_value)
    return torch.optim.AdamW(groups, lr=args.lr, betas=(args.beta1, args.beta2), eps=args.eps)


def save(folder, tensors):
    os.makedirs(folder, exist_ok=True)
    for name, tensor in tensors.items():
        np.save(os.path.join(folder, name + ".npy"), tensor.detach().float().numpy())
    return folder


def train(args):
    global stored
    if args.dtype == "float16":
        stored = RoundToHalf.apply
    masters = torch.float64 if args.dtype == "float64" else torch.float32
    config, weights = load_model(args.model, masters)
    tokens = read_tokens(args.data)
    if len(tokens) <= args.sequence:
        raise SystemExit(f"{args.data}: {len(tokens)} tokens are less than one row")
    optimizer = make_optimizer(weights, args)
    scale = LossScale(args)
    losses, grad_norms, scales = [], [], []
    gradients = os.path.join(args.out, "gradients")
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        losses.append(forward_backward(weights, config, tokens, step, scale.value, args))
        finite = unscale(weights, scale.value)
        scale.update(overflow=not finite)
        scales.append(scale.value)
        if step == 1:
            save(gradients, {name: w.grad for name, w in weights.items()})
        grad_norms.append(clip_gradients(weights, args.clip))
        if finite:
            optimizer.step()
    return {
        "losses": losses,
        "grad_norms": grad_norms,
        "loss_scales": scales,
        "parameters": sum(w.numel() for w in weights.values()),
        "gradients": gradients,
        "weights": save(os.path.join(args.out, "weights"), weights),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder with config.json and *.safetensors")
    parser.add_argument("--data", required=True, help=".bin: uint16, .u32: uint32, else bytes")
    parser.add_argument("--out", required=True, help="folder for gradients and weights")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows in a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--optimizer", choices=["AdamW", "Lion", "Adagrad", "Lamb"], default="AdamW")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--eps", type=float, default=1e-8)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--lr-decay", type=float, default=0.0, help="of Adagrad")
    parser.add_argument("--initial-accumulator-value", type=float, default=0.0, help="of Adagrad")
    parser.add_argument("--max-coeff", type=float, default=10.0, help="of Lamb")
    parser.add_argument("--min-coeff", type=float, default=0.01, help="of Lamb")
    parser.add_argument("--clip", type=float, default=1.0, help="0: off")
    parser.add_argument("--order", choices=["sequential"], default="sequential")
    parser.add_argument("--dtype", choices=["float16", "float32", "float64"], default="float32")
    parser.add_argument("--initial-scale-power", type=int, default=16, help="of fp16")
    parser.add_argument("--loss-scale-window", type=int, default=1000, help="of fp16")
    parser.add_argument("--hysteresis", type=int, default=2, help="of fp16")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(train(args)))


if __name__ == "__main__":
    main()
