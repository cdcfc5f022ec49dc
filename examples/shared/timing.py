"""Time of steps that take turns.

Other work on the machine then slows all of them alike, and their ratio holds.
"""

import os
import statistics
import sys
import time


def cores():
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def limit_threads(number):
    """Limits the threads of the backend. Call it before Keras is imported."""
    if "keras" in sys.modules:
        raise RuntimeError("The threads are limited before Keras is imported.")
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ[name] = str(number)
    if number > cores():
        sys.exit(f"There are {cores()} cores, not {number}.")
    if hasattr(os, "sched_setaffinity"):
        # JAX starts as many threads as it may use cores.
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[-number:])


def alternate(steps, rounds, warmup=2, limits=None):
    """Returns the seconds of each step in each round, by name.

    Args:
        steps: Functions by name. Each does its work and waits for the result.
        rounds: How often each step runs.
        warmup: Rounds before these, which compile and are not timed.
        limits: Fewer rounds for some of the steps, by name.
    """
    from keras.utils import Progbar

    seconds = {name: [] for name in steps}
    progress = Progbar(rounds + warmup, unit_name="round")
    for number in range(rounds + warmup):
        for name, step in steps.items():
            if number >= warmup + (limits or {}).get(name, rounds):
                continue
            start = time.perf_counter()
            step()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
        progress.add(1)
    return seconds


def compare(seconds, base):
    """Returns columns of a table for each name.

    The ratio to the base is taken in each round. Its median and its quartiles
    are reported.
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
