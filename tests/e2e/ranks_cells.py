"""What of a run of several ranks may change no number, in combinations.

A Cell is one combination. `every` are all of them, and `pairs` are few in which every two values occur
together that can.
"""
import dataclasses
import itertools
import random


@dataclasses.dataclass(frozen=True)
class Cell:
    """One way to train."""
    ranks: int
    dtype: str
    param: str  # home of the weights
    optimizer: str  # home of the states
    clip: float
    overlap: bool
    stage: int
    sent: str  # what gradients are sent in
    started: str = "environment"  # by what

    def numerics(self):
        """What of it does change numbers."""
        return {"dtype": self.dtype, "clip": self.clip, "communication_data_type": self.sent}

    def placed(self):
        """The rest of its configuration."""
        return {"param": self.param, "optimizer": self.optimizer, "overlap": self.overlap,
                "stage": self.stage}


# What may live where: (stage, home of parameters, of states).
PLACEMENTS = [(0, "none", "none"), (1, "none", "none"), (1, "none", "cpu"), (2, "none", "none"),
              (2, "none", "cpu"), (3, "none", "none"), (3, "none", "cpu"), (3, "none", "nvme"),
              (3, "cpu", "cpu"), (3, "cpu", "nvme"), (3, "nvme", "cpu"), (3, "nvme", "nvme")]


def every(starters=("environment",)):
    """All combinations, from one rank on."""
    return [Cell(ranks, dtype, param, optimizer, clip, overlap, stage, sent, started)
            for ranks, dtype, (stage, param, optimizer), clip, overlap, sent, started
            in itertools.product((1, 2, 3, 4), ("bf16", "fp32"), PLACEMENTS, (1.0, 0.0),
                                 (True, False), ("fp32", "bf16"), starters)]


def pairs_of(cell):
    """The pairs of values in it."""
    values = [("ranks", cell.ranks), ("dtype", cell.dtype), ("weights", cell.param),
              ("states", cell.optimizer),
              ("clip", cell.clip), ("overlap", cell.overlap), ("stage", cell.stage),
              ("sent", cell.sent), ("started", cell.started)]
    return set(itertools.combinations(values, 2))


def pairs(count, starters):
    """So many cells with every pair of values that occurs in any: each the one with most new pairs."""
    candidates = every(starters)
    random.Random(1).shuffle(candidates)
    missing = set().union(*map(pairs_of, candidates))
    chosen = []
    for _ in range(count):
        best = max(candidates, key=lambda cell: len(pairs_of(cell) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
        candidates.remove(best)
    assert not missing, f"{count} cells are too few for {missing}"
    return chosen
