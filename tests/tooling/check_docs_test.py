"""scripts/check_docs passes documents that name what is there and fails on each planted mistake."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_docs"

GOOD = {
    "README.md": "# A\nSee [the page](docs/page.md), [its end](docs/page.md#the-end-of-it), [up](#a)\n"
                 "and [elsewhere](https://example.org/none). `base/a.h`, `base/a` and `base/` are\n"
                 "there; `other/thing` is none of ours. It adds *new* `base/b`, `base/c` and more.\n"
                 "```\n`base/none.h` [x](none.md)\n```\n",
    "docs/page.md": "# Page\n[back](../README.md)\n## The end: of it\n",
    "base/a.h": "",
}


class CheckDocsTest(unittest.TestCase):
    def check(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD, **changes}.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return subprocess.run([sys.executable, SCRIPT, "--root", folder], check=False,
                                  capture_output=True, text=True)

    def test_good_documents_pass(self):
        outcome = self.check({})
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        self.assertIn("2 documents", outcome.stdout)

    def test_each_mistake_is_found_with_its_line(self):
        for text, finding in (
                ("\n[x](none.md)\n", "docs/page.md:2: link: none.md"),
                ("[x](../README.md#b)\n", "docs/page.md:1: link: ../README.md#b"),
                ("[x](#b)\n", "docs/page.md:1: link: #b"),
                ("```\nx\n```\n`base/none.h`\n", "docs/page.md:4: path: base/none.h"),
                ("*new* `base/b` and\nthen `base/none`\n", "docs/page.md:2: path: base/none")):
            with self.subTest(text=text):
                outcome = self.check({"docs/page.md": text, "README.md": "# A\n"})
                self.assertEqual(outcome.returncode, 1)
                self.assertEqual(outcome.stdout.splitlines(), [finding])

    def assert_findings(self, page, *findings):
        outcome = self.check({"docs/page.md": page, "README.md": "# A\n"})
        expected = list(findings) or ["2 documents name what is there"]
        self.assertEqual(outcome.stdout.splitlines(), expected, outcome.stderr)

    def test_an_anchor_of_a_folder_is_one_of_its_readme(self):
        self.assert_findings("[x](..) [x](..#a) [x](../base)\n")
        self.assert_findings("[x](..#b)\n[x](../base#a)\n[x](../base/a.h#a)\n",
                             "docs/page.md:1: link: ..#b", "docs/page.md:2: link: ../base#a",
                             "docs/page.md:3: link: ../base/a.h#a")

    def test_fenced_code_holds_neither_links_nor_headings(self):
        for begin, end in (("```sh", "```"), ("~~~", "~~~"), ("````md\n```", "````"),
                           ("- a list:\n\n  ```", "  ```"), ("```", "`````")):
            with self.subTest(begin=begin):
                code = f"{begin}\n# code\n[x](none.md) `base/none`\n{end}\n"
                line = code.count("\n") + 1
                self.assert_findings(f"{code}[x](#code)\n", f"docs/page.md:{line}: link: #code")
        self.assert_findings("# End\n[x](#end)\n```\n[x](none.md)\n")
        self.assert_findings("```one line```\n[x](none.md)\n", "docs/page.md:2: link: none.md")

    def test_a_heading_that_is_there_again_has_a_numbered_anchor(self):
        headings = "# B\n## B\n## B-1\n## B\n"
        self.assert_findings(f"{headings}[x](#b) [x](#b-1) [x](#b-1-1) [x](#b-2)\n")
        self.assert_findings(f"{headings}[x](#b-3)\n", "docs/page.md:5: link: #b-3")

    def test_no_document_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            outcome = subprocess.run([sys.executable, SCRIPT, "--root", folder], check=False,
                                     capture_output=True, text=True)
            self.assertEqual(outcome.returncode, 1)


if __name__ == "__main__":
    unittest.main()
