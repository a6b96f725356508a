"""docs/architecture.md, "Where guests go", names every file that a new operator has to be told to."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTED = re.compile(r"<!-- visits -->(.*?)<!-- end of visits -->", re.DOTALL)
NAME = re.compile(r"`([^`]+)`")


def visits(root):
    """Files of the product that tell the kinds of an OperatorCall apart."""
    found = set()
    for room in ("kernels", "train", "tools", "front", "zero", "sim"):
        for path in (root / room).rglob("*"):
            if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            text = path.read_text(encoding="utf-8")
            if "OperatorCall" in text and re.search(r"std::(visit|get_if|holds_alternative)\b", text):
                found.add(str(path.relative_to(root)))
    return found


class GuestsTest(unittest.TestCase):
    def test_the_document_lists_the_files_that_visit_the_calls_of_operators(self):
        text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
        [listed] = LISTED.findall(text)
        self.assertEqual(sorted(NAME.findall(listed)), sorted(visits(ROOT)))

    def test_there_are_such_files(self):
        self.assertIn("kernels/model/call_shapes.cc", visits(ROOT))


if __name__ == "__main__":
    unittest.main(verbosity=2)
