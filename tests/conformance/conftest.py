import keras
import pytest


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "requires_trainable_backend: of Keras's own tests"
    )


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """On jax these tests compile a lot and compute next to nothing."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    option = "jax_disable_most_optimizations"
    before = jax.config.read(option)
    jax.config.update(option, True)
    yield
    jax.config.update(option, before)
    # Other tests get their own, optimized, compilations.
    jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def traceback_filtering():
    """Keras's test case switches it off, and not on again."""
    enabled = keras.config.is_traceback_filtering_enabled()
    yield
    if enabled:
        keras.config.enable_traceback_filtering()
