import collections
import os

# tensorflow turns oneDNN on where it expects a gain, and without it has no
# convolutions with the channels first on a CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras  # noqa: E402
import pytest  # noqa: E402
from backends import KERAS  # noqa: E402

# `tests/run.py --all` runs these too. What is left shows within minutes whether
# a change is sound: of a test with many cases the first and the last.
SLOW_FILES = (
    "conformance/",
    "core/test_estimators.py",
    "diagnostics/test_gradient_variance.py",
    "models/test_refusal.py",
    "test_examples.py",
    "test_user_program.py",
)
SLOW_TESTS = {
    "test_a_way_round_the_noise",
    "test_a_weight_sample_is_one_for_all_steps_and_examples",
    "test_applications",
    "test_constraints_and_regularizers_of_the_keras_layer",
    "test_copies_are_whole_and_apart",
    "test_dtypes",
    "test_empty_batch",
    "test_every_structure_can_be_pruned",
    "test_exact_has_the_coefficients_of_its_fit",
    "test_exact_is_what_the_paper_integrates",
    "test_example_draws_for_each_example",
    "test_extreme_alpha",
    "test_fit_and_file",
    "test_frozen_layer_keeps_its_weights_and_its_noise",
    "test_gradients_reach_everything_and_are_finite",
    "test_in_compile_and_in_a_file",
    "test_inference_is_that_of_keras",
    "test_kinds_of_models",
    "test_learns_however_it_is_compiled",
    "test_likelihood_and_kl_apart_are_close_in_a_long_epoch",
    "test_litert",
    "test_mean_and_deviation",
    "test_model",
    "test_nested_layers_are_in_the_order_of_the_model",
    "test_optimizer_state_and_training_go_on",
    "test_other_layers_are_as_at_inference",
    "test_polynomial_slope_is_near_the_exact_one",
    "test_random_models",
    "test_rematerialized_noise_is_the_noise_of_the_forward_pass",
    "test_run_eagerly",
    "test_run_eagerly_and_changes_afterwards",
    "test_states_of_recurrent_layers",
    "test_takes_what_predict_takes",
    "test_the_usual_callbacks",
    "test_the_usual_callbacks_see_the_keys",
    "test_weight_averaging_of_the_paper",
    "test_weight_samples_have_the_same_variance",
    "test_zero_weights",
}
# Guides take long, and are the same on every backend.
QUICK_PAGES = "test_pages[README.md]"


def pytest_collection_modifyitems(items):
    cases = collections.Counter(map(test_of, items))
    seen = collections.Counter()
    for item in items:
        test = test_of(item)
        seen[test] += 1
        between = 1 < seen[test] < cases[test]
        if between or is_slow(item):
            item.add_marker(pytest.mark.slow)


def test_of(item):
    """The test that an item is a case of. Each docstring is a test."""
    name = getattr(item, "originalname", None) or item.name
    return item.nodeid if name == "test_docstrings" else (item.path, name)


def is_slow(item):
    name = getattr(item, "originalname", None) or item.name
    code = getattr(getattr(item, "function", None), "__code__", None)
    starts_a_process = code is not None and not {
        "run_processes",
        "run_python",
    }.isdisjoint(code.co_names)
    return (
        starts_a_process
        or any(part in item.nodeid for part in SLOW_FILES)
        or name in SLOW_TESTS
        or (name == "test_pages" and item.name != QUICK_PAGES)
    )


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)


# What tests ask of Keras, or of a layer of ours, and Keras 3.12 or 3.10 lack.
LACKING = (
    "has no `keras",
    "has no argument",
    "ReversibleEmbedding",
    "use_gate",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skips what an older Keras cannot do. With 3.15 nothing is skipped."""
    try:
        return (yield)
    except (AttributeError, NotImplementedError, ValueError) as error:
        if KERAS < (3, 15) and any(x in str(error) for x in LACKING):
            pytest.skip(f"Keras {keras.__version__}: {error}")
        raise
