"""scripts/check_includes passes a tree that follows the rules and fails on each planted mistake."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_includes"

# A small tree that follows all rules.
GOOD = {
    "base/CMakeLists.txt": "penstock_library(base\n  SOURCES a.cc # HEADERS no.h\n  HEADERS a.h b.h)",
    "base/a.h": "#include <vector>\n",
    "base/b.h": '#include "base/a.h"\n',
    "base/secret.h": "",
    "base/a.cc": '#include "base/a.h"\n#include "base/secret.h"\n',
    "aio/CMakeLists.txt": "penstock_library(aio HEADERS aio.h PUBLIC_DEPS penstock::base)",
    "aio/aio.h": '#include "base/a.h"\n',
    "aio/ring.h": "",
    "comm/CMakeLists.txt": "penstock_library(comm HEADERS job.h)",
    "comm/job.h": '#include "base/a.h"\n',
    "comm/library.h": "",
    "kernels/CMakeLists.txt": "penstock_library(kernels HEADERS dtype.h)",
    "kernels/dtype.h": '#include "base/a.h"\n',
    "kernels/threads.h": "",
    "kernels/state/CMakeLists.txt": "penstock_library(kernels_state HEADERS adam.h)",
    "kernels/state/adam.h": '#include "kernels/dtype.h"\n#include "kernels/threads.h"\n'
                            '#include "hwy/highway.h"\n',
    "kernels/model/CMakeLists.txt": "penstock_library(kernels_model HEADERS operators.h)",
    "kernels/model/operators.h": '#include "kernels/dtype.h"\n#include "kernels/threads.h"\n',
    "kernels/model/cpu_matmul.h": "",
    "zero/CMakeLists.txt": "penstock_library(zero HEADERS engine.h)",
    "zero/engine.h": '#include "kernels/state/adam.h"\n',
    "train/process/CMakeLists.txt": "penstock_library(train_process HEADERS log.h)",
    "train/process/log.h": '#include "base/a.h"\n',
    "run/CMakeLists.txt": "penstock_library(run HEADERS resume.h)",
    "run/resume.h": '#include "base/a.h"\n#include "zero/engine.h"\n',
    "run/rows.h": "",
    "train/loop/queue.h": "",
    "train/loop/CMakeLists.txt": "penstock_library(train_loop HEADERS trainer.h)",
    "train/loop/trainer.h": '#include "run/resume.h"\n',
    "train/CMakeLists.txt": "",
    "train/main.cc": '#include "train/loop/trainer.h"\n#include "aio/aio.h"\n#include "kernels/state/adam.h"\n#include <fmt/format.h>\n'
                     '#include "kernels/model/operators.h"\n',
    "tests/aio/ring_test.cc": '#include "aio/ring.h"\n#include "tests/aio/support.h"\n',
    "tests/aio/support.h": "",
    "tests/run/rows_test.cc": '#include "run/rows.h"\n',
    "tests/train/queue_test.cc": '#include "train/loop/queue.h"\n',
    "tests/kernels/x_test.cc": '#include "kernels/threads.h"\n#include "kernels/model/cpu_matmul.h"\n',
    "bench/main.cc": '#include "kernels/model/cpu_matmul.h"\n#include "aio/aio.h"\n',
    "build/x/generated.cc": '#include "nowhere.h"\n',
    "docs/architecture.md": """# Layers
```mermaid
flowchart TD
  %% floor 6
  train --> aio & kernels/model & train/loop
  %% floor 5
  train/loop --> run
  %% floor 4
  run --> zero
  %% floor 3
  zero --> kernels/state
  %% floor 2
  kernels/model --> kernels
  kernels/state --> kernels
  %% floor 1
  aio --> base
  comm --> base
  kernels --> base
  train/process --> base
  %% floor 0
  base
```
More text.
""",
}


def the_script():
    """scripts/check_includes as a module."""
    loader = importlib.machinery.SourceFileLoader("check_includes", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class CheckIncludes(unittest.TestCase):
    def run_on(self, changes):
        """Runs the script on GOOD with `changes`; returns its exit code and what it wrote to stderr."""
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, {**GOOD, **changes})
            return self.run_in(folder)

    def write(self, folder, files):
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def run_in(self, folder, *options):
        done = subprocess.run([sys.executable, str(SCRIPT), "--root", folder, *options],
                              check=False, capture_output=True, text=True)
        return done.returncode, done.stderr

    def assert_fails(self, changes, *expected):
        code, errors = self.run_on(changes)
        self.assertEqual(code, 1, errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        for text in expected:
            self.assertIn(text, errors)

    def test_a_tree_that_follows_the_rules_passes(self):
        self.assertEqual(self.run_on({}), (0, ""))

    def test_an_include_against_the_arrows_fails_with_file_line_include_and_rule(self):
        self.assert_fails({"base/a.h": '#include <vector>\n#include "aio/aio.h"\n'},
                          "base/a.h:2: aio/aio.h: arrows: base may include nothing, not aio")

    def test_a_source_that_does_not_include_its_header_first_fails(self):
        self.assert_fails({"base/a.cc": '#include "base/secret.h"\n#include "base/a.h"\n'},
                          "base/a.cc:1: base/secret.h: own: base/a.h comes first")
        self.assert_fails({"base/a.cu": "#include <vector>\n"},
                          "base/a.cu:1: vector: own: base/a.h comes first")
        self.assert_fails({"base/a.cc": "\n"}, "base/a.cc:1: own: base/a.h is not included")

    def test_an_include_across_fails(self):
        self.assert_fails({"kernels/state/adam.h": '  # include "aio/aio.h"\n'},
                          "arrows: kernels/state may include base, device, kernels, not aio")

    def test_the_engine_and_the_arithmetic_on_states_do_without_the_operators_of_a_model(self):
        self.assert_fails({"zero/engine.h": '#include "kernels/model/operators.h"\n'},
                          "zero/engine.h:1: kernels/model/operators.h: arrows: zero may include")
        self.assert_fails({"kernels/state/adam.h": '#include "kernels/model/operators.h"\n'},
                          "arrows: kernels/state may include base, device, kernels, not kernels/model")

    def test_the_rooms_of_a_folder_have_arrows_of_their_own(self):
        self.assert_fails({"run/resume.h": '#include "train/loop/trainer.h"\n'},
                          "run/resume.h:1: train/loop/trainer.h: arrows: run may include")
        self.assert_fails({"train/process/log.h": '#include "zero/engine.h"\n'},
                          "arrows: train/process may include base, not zero")

    def test_a_private_header_of_a_room_is_for_the_room_and_the_tests_of_its_folder(self):
        self.assert_fails({"train/main.cc": '#include "train/loop/queue.h"\n'},
                          "private: train/loop/queue.h is not in HEADERS of train/loop/CMakeLists.txt, so "
                          "only train/loop and tests/train may include it")
        self.assert_fails({"tests/zero/x_test.cc": '#include "run/rows.h"\n'}, "private:")

    def test_what_the_kinds_of_kernels_share_is_private_to_them(self):
        self.assert_fails({"zero/engine.h": '#include "kernels/threads.h"\n'},
                          "private: kernels/threads.h is not in HEADERS of kernels/CMakeLists.txt")
        self.assert_fails({"train/main.cc": '#include "kernels/model/cpu_matmul.h"\n'},
                          "private: kernels/model/cpu_matmul.h")

    def test_a_private_header_of_another_module_fails(self):
        self.assert_fails({"train/main.cc": '#include "aio/ring.h"\n'},
                          "train/main.cc:1: aio/ring.h: private:")

    def test_a_header_named_only_in_a_comment_of_the_build_file_is_private(self):
        self.assert_fails({"base/no.h": "", "aio/aio.h": '#include "base/no.h"\n'}, "private:")

    def test_a_private_header_in_the_tests_of_another_module_fails(self):
        self.assert_fails({"tests/zero/x_test.cc": '#include "aio/ring.h"\n'}, "private:")

    def test_the_emulation_of_cuda_may_include_private_headers_of_kernels_and_comm_only(self):
        code, errors = self.run_on(
            {"tests/emulated_cuda/x.cc": '#include "kernels/model/cpu_matmul.h"\n'
                                         '#include "comm/library.h"\n'})
        self.assertEqual(code, 0, errors)
        self.assert_fails({"tests/emulated_cuda/x.cc": '#include "aio/ring.h"\n'}, "private:")

    def test_a_private_header_in_a_benchmark_fails(self):
        self.assert_fails({"bench/main.cc": '#include "aio/ring.h"\n'}, "private:")

    def test_a_module_that_includes_a_test_fails(self):
        self.assert_fails({"aio/aio.h": '#include "tests/aio/support.h"\n'},
                          "arrows: no module includes tests")

    def test_a_path_that_does_not_start_at_the_root_fails(self):
        self.assert_fails({"base/b.h": '#include "a.h"\n'}, "base/b.h:1: a.h: root:")

    def test_a_path_relative_to_a_folder_of_the_module_fails(self):
        self.assert_fails({"base/sub/c.h": "", "base/b.h": '#include "sub/c.h"\n'}, "root: our own")

    def test_a_header_that_is_not_there_fails(self):
        self.assert_fails({"base/b.h": '#include "base/gone.h"\n'}, "root: there is no such file")

    def test_our_own_header_in_angle_brackets_fails(self):
        self.assert_fails({"base/b.h": "#include <aio/aio.h>\n"}, "root: our own headers")

    def test_an_unknown_folder_with_sources_fails(self):
        self.assert_fails({"util/x.cc": "\n"}, "util/x.cc:1: module:")

    def test_headers_that_quickstart_took_as_data_are_no_sources(self):
        self.assertEqual(self.run_on({"quickstart-run/data/bits/x.h": '#include "nowhere.h"\n'}),
                         (0, ""))

    def test_a_room_with_more_than_25_units_fails(self):
        # A header with its source is one unit, and so is each of them alone.
        full = {f"tools/u{number}.h": "" for number in range(24)}
        full["tools/u0.cc"] = '#include "tools/u0.h"\n'
        full["tools/alone.cc"] = "\n"
        self.assert_fails({**full, "tools/more.cc": "\n"},
                          "tools: units: it has 26, and a room has at most 25")
        # With 25 units, all that is left to say is that a module came and was not drawn.
        self.assert_fails(full, "docs/architecture.md:2: drawing:")
        self.assert_fails({**full, "tools/cli/more.cc": "\n"}, "drawing:")  # a room of its own
        self.assert_fails({**full, "tools/detail/more.cc": "\n"}, "tools: units:")

    def test_folders_that_are_no_rooms_may_have_more_units(self):
        more = {f"aio/u{number}.h": "" for number in range(40)}
        self.assertEqual(self.run_on(more), (0, ""))

    def test_the_arrows_have_no_circle(self):
        script = the_script()
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, GOOD)
            script.ARROWS = {**script.ARROWS, "base": ["aio"]}
            errors, _ = script.check(pathlib.Path(folder))
        self.assertIn("scripts/check_includes: circle: aio reaches itself", errors)

    def test_a_drawing_that_the_includes_do_not_make_fails_and_is_made(self):
        changes = {"kernels/dtype.h": '#include "device/device.h"\n',
                   "device/CMakeLists.txt": "penstock_library(device HEADERS device.h)",
                   "device/device.h": '#include "base/a.h"\n'}
        self.assert_fails(changes, "docs/architecture.md:2: drawing: it is not what the includes say",
                          "scripts/check_includes --draw")
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, {**GOOD, **changes})
            self.assertEqual(self.run_in(folder, "--draw"), (0, ""))
            drawn = pathlib.Path(folder, "docs/architecture.md").read_text(encoding="utf-8")
            self.assertEqual(self.run_in(folder), (0, ""))
        self.assertIn("  kernels --> device\n", drawn)
        self.assertIn("  %% floor 7\n  train --> aio & kernels/model & train/loop\n", drawn)
        self.assertTrue(drawn.startswith("# Layers\n```mermaid\n"), drawn)
        self.assertTrue(drawn.endswith("```\nMore text.\n"), drawn)

    def test_an_arrow_that_others_imply_is_not_drawn(self):
        self.assertEqual(self.run_on({"zero/engine.h": '#include "kernels/state/adam.h"\n'
                                                       '#include "kernels/dtype.h"\n'}), (0, ""))

    def test_a_document_without_a_drawing_fails(self):
        self.assert_fails({"docs/architecture.md": "# Layers\n"},
                          "docs/architecture.md: drawing: there is none")

    def test_no_drawing_is_made_of_includes_that_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, {**GOOD, "base/a.h": '#include "aio/aio.h"\n'})
            self.assertEqual(self.run_in(folder, "--draw")[0], 1)
            drawn = pathlib.Path(folder, "docs/architecture.md").read_text(encoding="utf-8")
        self.assertEqual(drawn, GOOD["docs/architecture.md"])

    def test_an_empty_tree_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, str(SCRIPT), "--root", folder], check=False,
                                  capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing was checked", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
