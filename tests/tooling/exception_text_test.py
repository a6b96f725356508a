"""No message has the text of a library's exception, which is of the library's code: what a user has
done is said in our words. So nothing reads the text, but for two files that take it apart.
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ("aio", "base", "comm", "config", "device", "front", "kernels", "numerics", "offload", "run",
           "sim", "sizing", "tools", "train", "zero")
TEXT = re.compile(r"(?:\.|->)what\(\)")
READS_IT = {
    "base/strict_json.cc": "JsonReason finds the key or the type in it",
    "tools/cli/usage_mistake.cc": "the name of the option, and what our own checks say",
}


def readers(root):
    """Files of the product in which the text of an exception is read."""
    found = set()
    for folder in PRODUCT:
        for path in (root / folder).rglob("*"):
            if path.suffix in (".h", ".cc", ".cu") and TEXT.search(path.read_text(encoding="utf-8")):
                found.add(str(path.relative_to(root)))
    return found


class ExceptionTextTest(unittest.TestCase):
    def test_nothing_else_reads_the_text_of_an_exception(self):
        self.assertEqual(readers(ROOT), set(READS_IT))

    def test_each_room_is_looked_at(self):
        made = {path.parent.name for path in ROOT.glob("*/CMakeLists.txt")}
        self.assertEqual(made - {"bench", "tests", "python"}, set(PRODUCT))


if __name__ == "__main__":
    unittest.main(verbosity=2)
