import os

# tensorflow turns oneDNN on where it expects a gain, and without it has no
# convolutions with the channels first on a CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras  # noqa: E402
import pytest  # noqa: E402
from backends import KERAS  # noqa: E402

# Sweeps of every combination, and whole trainings. `tests/run.py --all` runs
# these too. What is left shows within minutes whether a change is sound.
SLOW_FILES = (
    "conformance/",
    "core/test_estimators.py",
    "diagnostics/test_gradient_variance.py",
    "models/test_refusal.py",
    "test_examples.py",
)
SLOW_TESTS = {
    "test_applications",
    "test_dtypes",
    "test_empty_batch",
    "test_every_structure_can_be_pruned",
    "test_exact_is_what_the_paper_integrates",
    "test_extreme_alpha",
    "test_gradients_reach_everything_and_are_finite",
    "test_inference_is_that_of_keras",
    "test_kinds_of_models",
    "test_learns_however_it_is_compiled",
    "test_likelihood_and_kl_apart_are_close_in_a_long_epoch",
    "test_mean_and_deviation",
    "test_optimizer_state_and_training_go_on",
    "test_random_models",
    "test_rematerialized_noise_is_the_noise_of_the_forward_pass",
    "test_run_eagerly",
    "test_takes_what_predict_takes",
    "test_zero_weights",
}
# Of a test of every layer, one of each kind is quick.
QUICK_LAYERS = ("[dense-", "[dense]", "[conv2d_groups", "[einsum_dense_shared")
EVERY_LAYER = {
    "test_every_layer",
    "test_independent_noise_is_independent_everywhere",
    "test_mean_and_variance",
    "test_normal",
    "test_same_distribution",
    "test_same_kl_and_rates",
    "test_same_operations",
    "test_same_outputs",
    "test_weights_are_zeroed",
    "test_zero_inputs",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if is_slow(item):
            item.add_marker(pytest.mark.slow)


def is_slow(item):
    name = getattr(item, "originalname", None) or item.name
    code = getattr(getattr(item, "function", None), "__code__", None)
    starts_a_process = code is not None and "run_python" in code.co_names
    return (
        starts_a_process
        or any(part in item.nodeid for part in SLOW_FILES)
        or name in SLOW_TESTS
        or (
            name in EVERY_LAYER
            and not any(x in item.nodeid for x in QUICK_LAYERS)
        )
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
