"""Files that are read as a whole have a bound."""

import os
import pathlib
import resource
import tempfile
import unittest

import penstock
from penstock import _check_model, _config, _text_files, _universal_files
from penstock.errors import CorruptionError, InvalidArgumentError

SIZE = 8 << 30


class TextFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # What is held of a file of 8 GiB does not fit.
        with open("/proc/self/statm", encoding="ascii") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_AS, before)

    def huge(self, name, text=""):
        """A sparse file that is one line, after `text`."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        os.truncate(path, SIZE)
        return path

    def assert_refused(self, error, path, call):
        with self.assertRaises(error) as caught:
            call()
        line = str(caught.exception)
        for part in (str(path), f"{SIZE} bytes"):
            self.assertIn(part, line)
        self.assertNotIn("\n", line)

    def test_a_huge_configuration_is_refused(self):
        path = self.huge("config.json")
        self.assert_refused(InvalidArgumentError, path, lambda: _config.read_config(path))
        self.assert_refused(
            InvalidArgumentError, path, lambda: _check_model._read_config(self.folder)
        )

    def test_a_huge_name_of_the_latest_checkpoint_is_refused(self):
        path = self.huge("latest")
        self.assert_refused(CorruptionError, path, lambda: _universal_files._folder_of(self.folder))

    def test_what_is_no_text_and_what_is_nested_without_end_is_said_in_a_line(self):
        path = self.folder / "run.json"
        for data, said in (
            (b"\xff\xfe", "not UTF-8"),
            (b"[" * 100_000, "nested too deep"),
            (b"{", "not JSON"),
        ):
            path.write_bytes(data)
            with self.assertRaisesRegex(penstock.CorruptionError, said) as caught:
                _text_files.parse_json(_text_files.read_text(path), path)
            self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
