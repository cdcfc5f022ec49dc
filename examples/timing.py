"""Steps timed in turns, so that other work on the machine burdens all alike."""

import os
import statistics
import sys
import time


def cores():
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def limit_threads(number):
    """Of the backend. To be called before keras is imported."""
    if "keras" in sys.modules:
        raise RuntimeError("The number of threads comes before keras.")
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ[name] = str(number)
    if number > cores():
        sys.exit(f"There are {cores()} cores, not {number}.")
    if hasattr(os, "sched_setaffinity"):
        # JAX makes as many threads as it may use cores.
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[-number:])


def alternate(steps, rounds, warmup=2):
    """Seconds of each step in each round.

    Args:
        steps: Functions by name. Each does its work and waits for the result.
        rounds: How often each runs.
        warmup: Rounds before, of which no time is taken: these compile.
    """
    from keras.utils import Progbar

    seconds = {name: [] for name in steps}
    progress = Progbar(rounds + warmup, unit_name="round")
    for number in range(rounds + warmup):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
        progress.add(1)
    return seconds


def compare(seconds, base):
    """Columns of a table for each name: its time, and the ratio to the base.

    The ratio is taken in each round, and told with its quartiles.
    """
    rows = {}
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(own, seconds[base], strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
        rows[name] = {
            "milliseconds": f"{1000 * statistics.median(own):.2f}",
            "ratio": f"{ratio:.3f}",
            "lower_quartile": f"{low:.3f}",
            "upper_quartile": f"{high:.3f}",
            "rounds": len(own),
        }
    return rows


def show(rows, base):
    print(f"\n{'':38s}ms      ratio to {base}, quartiles")
    for name, row in rows.items():
        print(
            f"{name:32s}{row['milliseconds']:>8s}{row['ratio']:>11s}"
            f"  ({row['lower_quartile']} to {row['upper_quartile']})"
        )
