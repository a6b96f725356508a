"""One step of a peer's Adam for each line on stdin. Started by adam_ratio.py in the peers' environment.

    adam_peer.py deepspeed|torch ELEMENTS

deepspeed: what ZeRO-Offload runs on the host for one sub-group (stage3.py: unscale_and_clip_grads,
  _optimizer_step, the copy to the 16-bit partition): the fp32 gradient times the scale, CPU Adam, the
  cast to bf16. 8 + 28 + 6 = 42 bytes of memory traffic a parameter.
torch: torch.optim.AdamW(fused=True) and the cast to bf16. 28 + 6 = 34 bytes; its gradient is unscaled
  already.

The numbers are those of bench/adam_run: weights 0.5, gradients 2^-10, lr 1e-3, weight decay 0.01.
Answers each line with the seconds that the step took and the bf16 weight of the last element.
"""
import sys
import time

import torch

GRADIENT = 2.0 ** -10
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def make_step(peer, elements):
    """The step as a function, and the tensor of 16-bit weights that it writes."""
    master = torch.nn.Parameter(torch.full((elements,), 0.5))
    master.grad = torch.full((elements,), GRADIENT)
    weight = torch.zeros(elements, dtype=torch.bfloat16)
    if peer == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam([master], adamw_mode=True, **OPTIONS)
    else:
        optimizer = torch.optim.AdamW([master], fused=True, **OPTIONS)

    def step():
        if peer == "deepspeed":
            master.grad.mul_(1.0)
        optimizer.step()
        weight.copy_(master.data)

    return step, weight


def main():
    peer, elements = sys.argv[1], int(sys.argv[2])
    step, weight = make_step(peer, elements)
    for _ in sys.stdin:
        begin = time.perf_counter()
        step()
        seconds = time.perf_counter() - begin
        print(seconds, weight[-1].item(), flush=True)


if __name__ == "__main__":
    main()
