"""Two things measured in turn, and their ratio. For the scripts beside it."""
import statistics


def print_ratios(pairs, names, unit, measure):
    """`measure(name)` for both names in turn, order alternating: prints every pair and the ratio of
    the first to the second, then the median of the ratios and from where to where they range."""
    first, second = names
    ratios = []
    for pair in range(pairs):
        found = {name: measure(name) for name in (names if pair % 2 == 0 else (second, first))}
        ratios.append(found[first] / found[second])
        print(f"pair {pair + 1}: {first} {found[first]:.3f} {unit}, {second} {found[second]:.3f} {unit}, "
              f"ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}, "
          f"from {min(ratios):.3f} to {max(ratios):.3f}, {pairs} pairs")
