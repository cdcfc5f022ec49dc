"""The picture of benchmark.py: ratios of time, and how they grow."""

from shared import plotting


def draw(measurements, options):
    """Draws a line of comparisons, and below it a line of series."""
    compared, grown = measurements.compared, measurements.grown
    lines = [own for own in (compared, grown) if own]
    if not lines:
        return
    columns = max(map(len, lines))
    backend = measurements.versions["backend"]
    title = (
        f"{backend}, threads: {options.threads}\n"
        f"ratio of the time to {measurements.base}, with quartiles"
    )

    def paint(figure):
        figure.suptitle(title)
        axes = figure.subplots(len(lines), columns, squeeze=False)
        for line, panels in zip(lines, axes, strict=True):
            for unused in panels[len(line) :]:
                unused.remove()
        draw_comparisons(axes[0], compared)
        for panel, name in zip(axes[-1], grown, strict=False):
            draw_growth(panel, name, grown[name])

    ending = f"_{backend.split()[0]}_{options.threads}.png"
    path = plotting.beside(options.out, ending)
    plotting.draw(path, (4 * columns, 4 * len(lines)), paint, dpi=120)


def draw_comparisons(panels, compared):
    """Draws one panel for each comparison, with names where they change."""
    shown = []
    for panel, rows in zip(panels, compared, strict=False):
        draw_ratios(panel, rows)
        names = [row["model"] for row in rows]
        panel.tick_params(labelleft=names != shown)
        shown = names


def draw_ratios(panel, rows):
    ratio, low, high = (
        [float(row[column]) for row in rows]
        for column in ("ratio", "lower_quartile", "upper_quartile")
    )
    errors = [
        [r - lower for r, lower in zip(ratio, low, strict=True)],
        [upper - r for r, upper in zip(ratio, high, strict=True)],
    ]
    names = [row["model"] for row in rows]
    panel.barh(names, ratio, xerr=errors, capsize=2)
    panel.axvline(1, color="black", linewidth=1)
    panel.invert_yaxis()
    first = rows[0]
    panel.set_title(
        f"{first['what']}\n{first['network']} {first['size']}, "
        f"batch {first['batch_size']}",
        size="medium",
    )


def draw_growth(panel, name, series):
    """Draws the ratio of each model over a size."""
    places = [place for place, _ in series]
    for number, first in enumerate(series[0][1]):
        ratios = [float(rows[number]["ratio"]) for _, rows in series]
        panel.plot(places, ratios, "o-", label=first["model"])
    panel.set(xlabel=name, xscale="log", ylabel="ratio", ylim=(0, None))
    panel.set_xticks(places, places)
    panel.minorticks_off()
    panel.legend(fontsize="small")
