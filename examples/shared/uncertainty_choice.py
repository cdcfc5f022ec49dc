"""What a method leaves open is chosen by the likelihood of held-out images."""

from shared import plotting
from shared.results import Results
from shared.results import joined
from shared.results import versions
from shared.uncertainty_scores import as_text
from shared.uncertainty_scores import scores


def choose(network, candidates, validate, train, options):
    """Returns the best candidate. What was tried is in a CSV file.

    Args:
        network: Its name in that file.
        candidates: List of dictionaries.
        validate: Function of a candidate, of data to train on, and of images
            that returns probabilities for these images.
        train: Images and labels. The last sixth is held out.
        options: The options of the program.
    """
    if len(candidates) == 1:
        return candidates[0]
    results = Results(plotting.beside(options.out, "_validation.csv"))
    if options.chosen_on:
        rows = results.select(data=options.chosen_on, network=network)
        return best_of(rows, candidates)
    number = len(train[0]) - len(train[0]) // 6
    part, held = ([x[:number] for x in train], [x[number:] for x in train])
    rows = []
    for candidate in candidates:
        settings = {
            "data": options.data,
            "network": network,
            "candidate": joined(candidate.items()),
            "widths": joined(options.widths),
            "epochs": options.epochs,
        }
        if not results.select(**settings):
            judged = scores(held[1], validate(candidate, part, held[0]))
            results.append({**settings, **as_text(judged), **versions()})
        rows += results.select(**settings)
        print(joined(settings.values()), rows[-1]["nll"], flush=True)
    return best_of(rows, candidates)


def best_of(rows, candidates):
    best = min(rows, key=lambda row: float(row["nll"]))
    return next(
        candidate
        for candidate in candidates
        if joined(candidate.items()) == best["candidate"]
    )
