"""A case: a copy of the base set with something wrong in it, a command, and what that may do."""

import dataclasses
import os
import random
import re

from base_set import TRAIN

# A file of a state, or the one beside it that names its run.
STATE = r"penstock-[0-9a-f]{32}((\.\d+)?\.state|\.run)"
NOTHING = "$^"


@dataclasses.dataclass
class Case:
    """A folder to work in, a command, and what the command may do there."""

    folder: str
    what: str = ""
    arguments: list[str] = dataclasses.field(default_factory=list)
    may_make: str = NOTHING  # paths below the folder
    may_change: str = NOTHING  # or remove
    must_fail: bool = False
    must_tell: str = ""  # on stderr, if it does not fail

    def path(self, name: str) -> str:
        """Below its folder."""
        return os.path.join(self.folder, name)

    def read(self, name: str) -> bytes:
        """A file's bytes."""
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file's bytes."""
        with open(self.path(name), "wb") as file:
            file.write(data)

    def choose_train(self) -> None:
        """Trains a new run."""
        self.arguments = [*with_option(TRAIN, "--out", "new"), "--steps", "1"]
        # A state goes wherever the config says, to a new file.
        self.may_make = rf"new(/.*)?|(.*/)?{STATE}"

    def own(self) -> str:
        """The UUID of the run's state."""
        uuids: list[str] = re.findall(
            r'"state": {\s*"uuid": "([0-9a-f]{32})"', self.read("run/run.json").decode()
        )
        [uuid] = uuids
        return uuid


def with_option(arguments: list[str], name: str, value: str) -> list[str]:
    """The arguments with another value of an option."""
    at = arguments.index(name)
    return [*arguments[: at + 1], value, *arguments[at + 2 :]]


def choose_resume(case: Case, own: str, *how: str) -> None:
    """Trains one more step."""
    case.arguments = [*TRAIN, *how, "--steps", "4"]
    case.may_make = rf"run/[^/]+|nvme2?/{STATE}"
    case.may_change = (
        rf"run/[^/]+\.(json|jsonl|state)|run/snapshots/\.[^/]+(/.*)?|"
        rf"nvme2?/penstock-{own}((\.\d+)?\.state|\.run)"
    )


def choose_command(
    rng: random.Random, case: Case, own: str, names: list[str], of: str = "run"
) -> None:
    """One of the commands of those names, on RUN or on a snapshot of it."""
    name = rng.choice(names)
    if name == "inspect":
        case.arguments = ["inspect", of]
    elif name == "export":
        case.arguments = ["export", of, "--to", "to"]
        case.may_make = "to(/.*)?"
    elif name == "compare":
        case.arguments = [
            "compare",
            *rng.choice(
                [(of, "export"), ("run", "run/snapshots/kept"), ("export", of), (of, "other")]
            ),
        ]
    elif name == "snapshots":
        case.arguments = ["snapshots", "run"]
    elif name == "snapshot":
        case.arguments = ["snapshot", "run", "new"]
        case.may_make = (
            rf"run/snapshots(/(new|\.new\.[^/]+)(/.*)?)?|"
            rf"nvme2?/penstock-{own}(\.\d+)?\.snapshot-new\.state(\.tmp)?"
        )
        case.may_change = r"run/snapshots/\.new\..*"
    elif name == "clean":
        case.arguments = ["clean", "run"]
    elif name == "clean --yes":
        case.arguments = ["clean", "run", "--yes"]
        case.may_change = (
            rf"run|run/[^/]+\.(json|jsonl|state|lock)|run/.*\.tmp-\d+|nvme2?/penstock-{own}.*|"
            r"run/snapshots(/(?!mine)[^/]+(/[^/]+\.(json|jsonl|state|lock|tmp))?)?"
        )
    elif name == "resume":
        choose_resume(case, own, "--resume")
    else:
        choose_resume(case, own, "--resume-from", "kept")


# The commands that look at what was changed.
OF_ROWS = ["resume"] * 4 + ["snapshot"] * 2 + ["clean --yes"]
OF_RUN = (
    ["inspect"] * 4
    + ["export"] * 4
    + ["compare"] * 2
    + ["snapshots", "clean", "clean --yes"]
    + ["snapshot"] * 2
    + ["resume"] * 4
)
OF_SNAPSHOT = (
    ["inspect"] * 3
    + ["export"] * 3
    + ["compare"] * 2
    + ["snapshots"] * 2
    + ["resume-from"] * 4
    + ["clean", "clean --yes"]
)
ALL = OF_RUN + OF_SNAPSHOT
