"""The CUDA side of the program on an emulated GPU (tests/emulated_cuda): losses as on the CPU device,
and placement that changes nothing. Models and runs are small, as each of a kernel's threads is a
fiber.
"""
import harness
import placement_test
import recorded_test


class EmulatedPlacementTest(placement_test.PlacementCase):
    placements = {name: placement_test.PLACEMENTS[name] for name in (
        "host", "all on nvme", "checkpoints on the host", "overlap off")}

    def trained(self, config, *more, **keywords):
        model = self.make_model("small", n_layer=2, n_positions=16)
        return super().trained(config, *more, steps=4, model=model, **keywords)

    def test_bf16_clipped(self):
        self.compare(dtype="bf16", clip=1.0, micro_batches=1)

    def test_bf16_without_clipping_with_2_micro_batches(self):
        self.compare(dtype="bf16", clip=0.0, micro_batches=2)

    def test_fp32_clipped(self):
        self.compare(dtype="fp32", clip=1.0, micro_batches=1)


class EmulatedLossesTest(recorded_test.RecordedCase):
    def test_steps_in_fp32_have_the_losses_that_were_recorded_on_the_cpu(self):
        self.assert_recorded(3)


if __name__ == "__main__":
    harness.main()
